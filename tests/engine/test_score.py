"""Scoring one given answer: the same path, limits and failure kinds as a rollout's."""

import asyncio
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rollbook import Environment, RolloutFailed, Score, Task, UsageError, score
from rollbook.core import Limits, Message
from rollbook.engine.blends import load_environment
from rollbook.engine.scoring import is_importable, open_scorer
from support.judge import JudgeServer

SOURCE = """
import os, time
from rollbook import Environment, Score, Task, tool

class Shop(Environment):
    def tasks(self):
        yield Task("tea", "Sell a tea.", answer=3, kinds=("a", "b"))

    def open(self, task):
        return {"total": 0}

    @tool
    def sell(self, state, price: int) -> str:
        "Sell something."
        state["total"] += price
        return f"It is {state['total']} now."

    def outcome(self, state):
        return state["total"]

    def verify(self, task, rollout):
        if rollout.text == "hang":
            time.sleep(60)
        if rollout.text == "crash":
            os.abort()
        if rollout.text == "raise":
            raise KeyError("broken")
        if rollout.text == "nan":
            return float("nan")
        if rollout.text == "eat":
            return len(bytearray(8 << 30))
        right = float(rollout.outcome == task.answer)
        return Score(right, {"kinds": len(task.kinds)}, rollout.text, {"pid": os.getpid()})
"""


@pytest.fixture
def shop(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SOURCE)
    return f"{tmp_path}/shop.py"


def test_a_plain_call_gives_the_score_with_its_parts(shop):
    found = score(shop, "tea", "Done.")
    assert (found.reward, found.parts, found.answer) == (0.0, {"kinds": 2.0}, "Done.")
    assert found.info["pid"] not in (None, os.getpid())


def test_a_list_is_said_turn_by_turn_with_tools(shop):
    calls = '{"calls": [{"name": "sell", "arguments": {"price": 3}}]}'
    assert score(shop, "tea", [calls, "Done."]).reward == 1.0
    assert score(shop, "tea", [calls, calls, "Done."]).reward == 0.0


def test_one_text_that_calls_a_tool_is_scored_where_it_leaves_things(shop):
    assert score(shop, "tea", '{"calls": [{"name": "sell", "arguments": {"price": 3}}]}').reward == 1.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("hang", "verifier_timeout"),
        ("crash", "verifier_error"),
        ("raise", "verifier_error"),
        ("nan", "invalid_reward"),
        ("eat", "verifier_error"),
    ],
)
def test_what_a_rollout_would_fail_of_fails_here_in_the_same_way(shop, text, kind):
    with pytest.raises(RolloutFailed) as caught:
        score(shop, "tea", text, limits=Limits(verify_s=0.5, memory_mb=512))
    assert (caught.value.kind, caught.value.where) == (kind, "verify")


def test_a_deadline_is_kept_after_calls_that_were_allowed_more(shop):
    began = time.monotonic()
    with pytest.raises(RolloutFailed, match=r"verify took longer than 0.5 s"):
        score(shop, "tea", "hang", limits=Limits(verify_s=0.5, tool_s=60.0))
    assert time.monotonic() - began < 20


def test_it_blocks_in_a_running_loop_too():
    async def work():
        return score("gsm8k", "gsm8k-0000", "\\boxed{18}")

    assert asyncio.run(work()).reward == 1.0


def test_a_task_of_ones_own_is_scored_too(shop):
    mine = Task("mine", "Sell nothing.", answer=0, kinds=[])
    found = score(shop, mine, "Nothing.")
    assert (found.reward, found.parts) == (1.0, {"kinds": 0.0})


@pytest.mark.parametrize(
    ("path", "file", "importable"),
    [("sums.py", "sums.py", True), ("sums.py", None, True), (None, "sums.py", True), (None, None, False)],
)
def test_a_class_is_importable_if_its_module_or_its_source_is_a_file(monkeypatch, path, file, importable):
    module = ModuleType("a_module_of_this_test")
    module.__file__ = file
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cls = type("Sums", (Environment,), {"__module__": module.__name__, "__qualname__": "Sums"})
    loaded = SimpleNamespace(cls=cls, path=path and Path(path))
    assert is_importable(loaded) is importable
    cls.__qualname__ = "f.<locals>.Sums"
    assert is_importable(loaded) is False


def test_a_class_of_a_notebook_is_scored_here():
    class Loop(Environment):
        def tasks(self):
            yield Task("a", "?")

        async def verify(self, task, rollout):
            verified.append(task.id)
            return Score(0.5, answer=rollout.text)

    verified: list[str] = []
    assert score(Loop(), "a", "x") == Score(0.5, answer="x")
    assert verified == ["a"]


def test_an_unknown_task_is_answered_with_those_that_may_be_meant(shop):
    with pytest.raises(UsageError, match="has no task 'gsm8k-9999'; did you mean gsm8k-"):
        score("gsm8k", "gsm8k-9999", "1")
    with pytest.raises(UsageError, match=r"has no task 'zzzz'; did you mean tea?"):
        score(shop, "zzzz", "1")


def test_a_task_that_json_cannot_hold_is_refused(shop):
    with pytest.raises(UsageError, match="task 'mine' cannot be stored as JSON"):
        score(shop, Task("mine", "?", answer=object()), "1")


def test_a_judge_is_asked_as_in_a_run(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "problem": "1 + 1?", "answer": "2"}\n')
    with JudgeServer(same={frozenset({"2", "two"})}) as judge:
        found = score("math", "a", "\\boxed{two}", data=str(tmp_path / "rows.jsonl"), judge=judge.url)
    assert (found.reward, found.parts) == (1.0, {"rule": 0.0, "judge": 1.0})


def test_tasks_that_are_none_are_refused_in_one_line(tmp_path):
    (tmp_path / "env.py").write_text(SOURCE.replace("        yield Task", "        yield 'tea'; yield Task"))
    with pytest.raises(UsageError, match=r"Shop: tasks\(\) gave a str, not a Task"):
        score(f"{tmp_path}/env.py", "tea", "Done.")


OFFERING = """
from rollbook import Environment, Task, tool

SCHEMA = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

class Shop(Environment):
    def tasks(self):
        yield Task("tea", "Sell a tea.")

    def offers(self, task):
        return [SCHEMA]

    async def use(self, name, arguments, state):
        return "nothing"

    async def open(self, task):
        open(self.log, "a").write("opened ")
        return {}

    async def close(self, state):
        open(self.log, "a").write("closed ")

    async def verify(self, task, rollout):
        return 1.0
"""


def list_tools(spec: str) -> list[str]:
    async def work() -> list[str]:
        loaded = load_environment(spec)
        async with open_scorer(loaded, Limits()) as scorer:
            found = await scorer.tools(Task("tea", "Sell a tea."))
            return [each["function"]["name"] for each in found]

    return asyncio.run(work())


def test_the_tools_of_a_rollout_are_those_of_the_class_and_of_its_task(shop, tmp_path):
    assert list_tools(shop) == ["sell"]
    log = tmp_path / "log.txt"
    (tmp_path / "offering.py").write_text(OFFERING.replace("self.log", repr(str(log))))
    assert list_tools(f"{tmp_path}/offering.py") == ["look"]
    assert log.read_text() == "opened closed "


def test_answers_that_a_task_shows_are_not_turns_of_the_rollout(shop):
    shown = [Message("user", "Sell one."), Message("assistant", "Done."), Message("user", "Sell a tea.")]
    task = Task("mine", shown, answer=3, kinds=())
    call = '{"calls": [{"name": "sell", "arguments": {"price": 3}}]}'
    found = score(shop, task, [call, "Over."])
    assert (found.reward, found.answer) == (1.0, "Over.")


MANY = """
from rollbook import Environment, Task

class Many(Environment):
    def __init__(self, count=9):
        self.count = count

    def tasks(self):
        return (Task(f"task-{i}", "?") for i in range(self.count))

    def verify(self, task, rollout):
        return True
"""


def test_three_tasks_at_most_are_suggested(tmp_path):
    (tmp_path / "many.py").write_text(MANY)
    spec = f"{tmp_path}/many.py"
    for name, hint in (
        ("zzz", "did you mean task-0, task-1, task-2?"),
        ("task-x", "did you mean task-8, task-7, task-6?"),
    ):
        with pytest.raises(UsageError) as caught:
            score(spec, name, "1")
        assert str(caught.value).endswith(f"has no task {name!r}; {hint}")
    with pytest.raises(UsageError, match="has no task 'a'; it has no tasks"):
        score(f"{spec}?count=0", "a", "1")


def test_an_environment_that_runs_its_rollouts_itself_scores_no_given_answer(tmp_path):
    source = MANY.replace("    def __init__", "    needs_model = False\n\n    def __init__")
    (tmp_path / "many.py").write_text(source)
    with pytest.raises(UsageError, match="Many runs its rollouts itself, so it cannot score a given answer"):
        score(f"{tmp_path}/many.py", "task-1", "1")
