"""Break rates: what a run of conversations says of the tokens of its later turns."""

import asyncio
import os
from pathlib import Path

import pytest

from rollbook import Collector, Environment, Task, run_async, tool
from rollbook.book import Book, rollouts
from rollbook.core import JSON, Rollout
from rollbook.errors import BookError, UsageError
from rollbook.reports.report import Continuity, RunData, build_report, make_report, measure_continuity
from rollbook.tokens import merge
from rollbook.tokens.sequences import ANSWER_LEFT_OUT
from support.endpoint import Endpoint


class Calculator(Environment):
    def tasks(self):
        for i in range(3):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + 2?", answer=str(i + 2))

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def verify(self, task, rollout):
        return task.answer in rollout.text


class Chatty(Environment):
    def tasks(self):
        yield Task(id="chat", prompt="What is 1 + 1?")

    async def reply(self, task, rollout, state):
        return "What is 2 + 2?" if len(rollout.turns) < 3 else None

    async def verify(self, task, rollout):
        return 1.0


def met(env: Environment, *, endpoint: JSON = None, **more: JSON) -> tuple[list[Rollout], Endpoint]:
    async def go() -> tuple[list[Rollout], Endpoint]:
        async with (
            Endpoint(vllm=True, odd=True, **(endpoint or {})) as served,
            Collector(env, served.url, **more) as collector,
        ):
            return [r async for g in collector.groups() for r in g.rollouts], served

    return asyncio.run(go())


def book(tmp_path: Path, **more: JSON) -> Book:
    met(Calculator(), book=tmp_path / "run", samples=2, **more)
    return Book(tmp_path / "run")


def test_forks_are_counted_with_their_reasons(tmp_path: Path) -> None:
    made = book(tmp_path)
    (told,) = measure_continuity([made]).values()
    assert told == Continuity(6, 6, 6, 6, {ANSWER_LEFT_OUT: 6})
    forks = sum(len(merge(rollout.turns)) - 1 for rollout in rollouts(made, tokens=True))
    assert (told.forks, told.break_rate) == (forks, 1.0)
    assert make_report(made.path, write=False).json()["continuity"]["Calculator"]["break_rate"] == 1.0


def test_ids_that_are_cut_short_are_named_by_their_file(tmp_path: Path) -> None:
    made = book(tmp_path)
    (ids,) = (made.path / "journals").glob("*.tokens")
    os.truncate(ids, 10)
    with pytest.raises(BookError, match=rf"{ids}, byte \d+: a token record .* restore it from a copy"):
        measure_continuity([made])


def test_continued_in_tokens_there_are_none(tmp_path: Path) -> None:
    made = book(tmp_path, continue_tokens=True)
    (told,) = measure_continuity([made]).values()
    assert told == Continuity(6, 0, 6, 0, {})
    assert made.manifest.continue_tokens


@pytest.mark.parametrize("env", [Calculator(), Chatty()], ids=["tools", "dialogue"])
@pytest.mark.parametrize("continued", [False, True])
def test_tool_loops_and_dialogues_are_continued_turn_after_turn(env: Environment, continued: bool) -> None:
    found, served = met(env, continue_tokens=continued)
    assert all((len(merge(rollout.turns)) == 1) is continued for rollout in found)
    sent = ["kv_transfer_params" in body for body in served.bodies]
    assert sum(sent) == (len(sent) - len(found) if continued else 0)


def test_calls_written_as_text_are_continued_too() -> None:
    found, _ = met(Chatty(), continue_tokens=True, tool_format="text")
    assert [len(merge(rollout.turns)) for rollout in found] == [1]


def test_a_rollout_that_two_directories_hold_counts_once(tmp_path: Path) -> None:
    import shutil

    made = book(tmp_path)
    shutil.copytree(made.path, tmp_path / "copy")
    (told,) = build_report(RunData([made.path, tmp_path / "copy"])).continuity.values()
    assert told.rollouts == 6


def test_rollouts_of_one_turn_or_without_tokens_have_nothing_to_continue(tmp_path: Path) -> None:
    async def go() -> None:
        async with Endpoint() as served:
            await run_async(Calculator(), served.url, out=tmp_path / "plain")

    asyncio.run(go())
    assert measure_continuity([Book(tmp_path / "plain")]) == {}
    assert make_report(tmp_path / "plain", write=False).continuity == {}


def test_an_endpoint_without_tokens_cannot_be_continued(tmp_path: Path) -> None:
    async def go() -> None:
        async with Endpoint() as served:
            await run_async(Calculator(), served.url, out=tmp_path / "run", continue_tokens=True)

    with pytest.raises(UsageError, match="does not report token ids"):
        asyncio.run(go())
