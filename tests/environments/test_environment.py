import copy

import pytest

from rollbook.core import Task
from rollbook.environments.environment import Environment, ExecutionMode, arguments_of, execution_mode, parameters_of
from rollbook.environments.tools import tool
from rollbook.errors import UsageError


class Sums(Environment):
    def tasks(self):
        yield Task(id="sum-1", prompt="What is 1 + 1?", answer="2")

    def verify(self, task, rollout):
        return True


class AsyncVerify(Sums):
    async def verify(self, task, rollout):
        return True


class Opens(Sums):
    def open(self, task):
        return []


class Speaks(Sums):
    async def open(self, task):
        return []

    async def reply(self, task, rollout, state):
        return "go on"


class Tooled(Sums):
    @tool
    async def look(self, word: str) -> str:
        """Look it up."""
        return word


class Inherits(Opens):
    pass


class Mixed(Sums):
    def open(self, task):
        return []

    async def close(self, state):
        pass

    @tool
    def look(self, word: str) -> str:
        """Look it up."""
        return word


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Sums, ExecutionMode("sync", "none")),
        (AsyncVerify, ExecutionMode("async", "none")),
        (Opens, ExecutionMode("sync", "sync")),
        (Inherits, ExecutionMode("sync", "sync")),
        (Speaks, ExecutionMode("sync", "async")),
        (Tooled, ExecutionMode("sync", "async")),
    ],
)
def test_the_shape_says_where_methods_run(cls, expected):
    assert execution_mode(cls) == expected


def test_state_methods_that_mix_sync_and_async_are_named():
    with pytest.raises(UsageError, match=r"Mixed: .*async: close; sync: open, look"):
        execution_mode(Mixed)


def test_an_environment_without_verify_is_refused_by_name():
    class Half(Environment):
        def tasks(self):
            return []

    with pytest.raises(UsageError, match=r"Half has no verify\(task, rollout\)"):
        execution_mode(Half)


def test_the_missing_methods_say_what_to_define():
    bare = Environment()
    with pytest.raises(UsageError, match=r"Environment has no tasks\(\)"):
        bare.tasks()
    with pytest.raises(UsageError, match=r"Environment has no verify"):
        bare.verify(None, None)


def test_the_optional_methods_have_defaults():
    env, task = Sums(), Task(id="a", prompt="b")
    assert env.solution(task) is None
    assert env.open(task) is None
    assert env.outcome(None) is None
    assert env.reply(task, None, None) is None
    assert env.close(None) is None


class Sized(Sums):
    def __init__(self, size, top=9, **more):
        self.size = size


def test_an_instance_remembers_its_arguments_by_name():
    assert arguments_of(Sized(3, level="hard")) == {"size": 3, "level": "hard"}
    assert arguments_of(Sized(size=3, top=(1, 2))) == {"size": 3, "top": [1, 2]}
    assert arguments_of(Sums()) == {}
    assert list(parameters_of(Sized)) == ["size", "top", "more"]


def test_arguments_that_json_cannot_hold_are_refused():
    with pytest.raises(UsageError, match="Sized: its arguments must be JSON"):
        arguments_of(Sized(object()))


def test_an_environment_without_init_takes_no_arguments():
    with pytest.raises(TypeError, match="Sums"):
        Sums(size=3)


def test_an_instance_can_be_copied():
    assert copy.deepcopy(Sized(3)).size == 3
