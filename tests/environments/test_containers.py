"""What a class with a container must look like; real containers are in tests/containers/real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollbook import Container, Environment, Rollout, Task, tool
from rollbook.environments.environment import choose_container, execution_mode
from rollbook.environments.registry import load_instance
from rollbook.errors import UsageError


class Bare(Environment):
    def tasks(self) -> Iterator[Task]:
        yield Task("a", "b")

    async def verify(self, task: Task, rollout: Rollout) -> float:
        return 1.0


class Contained(Bare):
    container = Container(image="x")


class Verified(Contained):
    async def verify(self, task: Task, rollout: Rollout, container: object) -> float:  # type: ignore[override]
        return 1.0


class PerTask(Bare):
    def container_for(self, task: Task) -> Container:
        return Container(image=task.id)


@pytest.mark.parametrize(("cls", "use"), [(Bare, ""), (Contained, "state"), (Verified, "verify"), (PerTask, "state")])
def test_the_spec_says_how_long_a_container_is_needed(cls: type[Environment], use: str) -> None:
    spec = load_instance(cls).spec
    assert spec.container == use
    assert spec.state == ("async" if use else "none")


class Named(Bare):
    container = "debian"  # type: ignore[assignment]


def test_something_else_than_a_container_is_refused_before_the_start() -> None:
    with pytest.raises(UsageError, match=r"Named.container is 'debian', no Container: write Container\(image=...\)"):
        load_instance(Named)


class NamedPerTask(Bare):
    def container_for(self, task: Task) -> Container:
        return "debian"  # type: ignore[return-value]


def test_something_else_than_a_container_for_a_task_is_named() -> None:
    with pytest.raises(UsageError, match="container_for returned is 'debian', no Container"):
        choose_container(NamedPerTask(), Task("a", "b"))


class NoContainer(Bare):
    async def open(self, task: Task, container: object) -> None:  # type: ignore[override]
        return None


class Plain(Bare):
    container = Container(image="x")

    def open(self, task: Task) -> int:
        return 1

    @tool
    def look(self, container: object) -> str:
        """Look."""
        return ""

    def verify(self, task: Task, rollout: Rollout, container: object) -> float:  # type: ignore[override]
        return 1.0


class PlainVerify(Bare):
    container = Container(image="x")

    def verify(self, task: Task, rollout: Rollout, container: object) -> float:  # type: ignore[override]
        return 1.0


@pytest.mark.parametrize("cls", [Plain, PlainVerify])
def test_plain_methods_with_a_container_run_in_an_environment_process(cls: type[Environment]) -> None:
    spec = load_instance(cls).spec
    assert (spec.container, spec.state, spec.verify) == ("verify", "sync", "sync")


class Mixed(Plain):
    async def verify(self, task: Task, rollout: Rollout, container: object) -> float:  # type: ignore[override]
        return 1.0


class AsyncSolve(Plain):
    async def solve(self, task: Task, state: object) -> None:
        return None


class OwnProgram(Plain):
    async def run_program(self, *given: object) -> None:  # type: ignore[override]
        return None


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (NoContainer, r"NoContainer.open takes a container; write container = Container\(image=...\)"),
        (Mixed, "must all be async or all sync; async: verify; sync: look, its state"),
        (AsyncSolve, "async: solve; sync: verify, look, its state"),
        (OwnProgram, "run_program would never be called"),
    ],
)
def test_a_class_that_cannot_use_its_container_is_refused(cls: type[Environment], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        execution_mode(cls)
