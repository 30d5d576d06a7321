"""A state is opened once, used in the process that has it, and closed exactly once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from rollbook.core import Limits, Message, Rollout, Task
from rollbook.environments.pool import SessionLost
from rollbook.environments.registry import resolve
from rollbook.environments.runtime import EnvironmentRuntime
from rollbook.environments.snapshot import load_environment, write_snapshot
from rollbook.errors import RolloutFailed
from support.alive import eventually
from support.tool_environment import ASYNC, SYNC, life, write_desk

T = TypeVar("T")
both = pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
SLOW = """
    def open(self, task):
        time.sleep(0.5)
        return super().open(task)
"""


def with_runtime(
    folder: Path,
    work: Callable[[EnvironmentRuntime], Awaitable[T]],
    source: str = SYNC,
    name: str = "Desk",
    processes: int = 1,
) -> T:
    spec = write_snapshot(resolve(write_desk(folder, source, name)), folder / "source")

    async def go() -> T:
        limits = Limits(tool_s=2.0)
        runtime = EnvironmentRuntime(
            spec,
            limits,
            environment=lambda: load_environment(spec, folder),
            run=folder,
            max_processes=processes,
            log=folder / "log",
        )
        try:
            await runtime.open()
            return await work(runtime)
        finally:
            await runtime.close()

    return asyncio.run(go())


def task(number: int) -> Task:
    return Task(id=f"desk-{number}", prompt="q", answer=number)


@both
def test_states_of_interleaved_rollouts_do_not_meet(tmp_path: Path, source: str) -> None:
    async def one(runtime: EnvironmentRuntime, number: int) -> dict[str, object]:
        session = await runtime.open_session(task(number), f"desk-{number}")
        for _ in range(5):
            await session.use("add", f'{{"a": {number}}}')
            assert await session.use("whose", "") == f"desk-{number}"
        outcome: dict[str, object] = await session.outcome()
        await runtime.close_session(session)
        assert session.seconds > 0
        return outcome

    async def work(runtime: EnvironmentRuntime) -> list[dict[str, object]]:
        return list(await asyncio.gather(*(one(runtime, i) for i in range(12))))

    found = with_runtime(tmp_path, work, source, processes=2)
    assert [outcome["total"] for outcome in found] == [5 * i for i in range(12)]
    opened, closed = life(tmp_path)
    assert opened == closed == Counter(f"desk-{i}" for i in range(12))


@both
def test_a_state_is_closed_though_the_one_who_waits_is_cancelled_again_and_again(tmp_path: Path, source: str) -> None:
    async def work(runtime: EnvironmentRuntime) -> None:
        async def rollout() -> None:
            session = await runtime.open_session(task(1), "desk-1")
            try:
                await asyncio.sleep(60)
            finally:
                await runtime.close_session(session)

        lane = asyncio.create_task(rollout())
        await asyncio.sleep(0.3)
        for _ in range(3):
            lane.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({lane})
        assert lane.cancelled()

    with_runtime(tmp_path, work, source)
    assert life(tmp_path) == (Counter({"desk-1": 1}), Counter({"desk-1": 1}))


def test_a_state_that_was_opened_for_nobody_is_closed(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await runtime.open_session(task(1), "desk-1")

    with_runtime(tmp_path, work, SYNC + f"\n\nclass Slow(Desk):{SLOW}", "Slow")
    assert life(tmp_path) == (Counter({"desk-1": 1}), Counter({"desk-1": 1}))


def test_leaving_twice_closes_once(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> None:
        session = await runtime.open_session(task(1), "desk-1")
        await asyncio.gather(runtime.close_session(session), runtime.close_session(session))

    with_runtime(tmp_path, work)
    assert life(tmp_path)[1] == Counter({"desk-1": 1})


def test_a_tool_that_ends_its_process_fails_its_own_rollout_and_unseats_the_others(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> list[str]:
        guilty, mate = await runtime.open_session(task(1), "a"), await runtime.open_session(task(2), "b")
        with pytest.raises(RolloutFailed, match="SIGKILL") as caught:
            await guilty.use("die", "")
        with pytest.raises(SessionLost):
            await mate.use("whose", "")
        await runtime.close_session(guilty)
        await runtime.close_session(mate)
        again = await runtime.open_session(task(2), "b")
        said = await again.use("whose", "")
        await runtime.close_session(again)
        return [caught.value.kind, caught.value.where, said]

    assert with_runtime(tmp_path, work) == ["environment_error", "tool die", "desk-2"]
    opened, closed = life(tmp_path)
    assert (opened["desk-2"], closed["desk-2"]) == (2, 1)


@both
def test_a_reply_is_the_next_message_and_sees_the_conversation(tmp_path: Path, source: str) -> None:
    async def work(runtime: EnvironmentRuntime) -> list[Message | None]:
        session = await runtime.open_session(task(3), "a")
        wrong = Rollout(task=task(3), sample=0, seed=0, messages=[Message("user", "q"), Message("assistant", "4")])
        right = Rollout(task=task(3), sample=0, seed=0, messages=[Message("user", "q"), Message("assistant", "3")])
        said = [await session.reply(wrong), await session.reply(right)]
        await runtime.close_session(session)
        return said

    assert with_runtime(tmp_path, work, source, "Talking") == [Message("user", "No. Once more: q"), None]


@both
def test_an_outcome_that_is_no_json_is_the_environments_mistake(tmp_path: Path, source: str) -> None:
    async def work(runtime: EnvironmentRuntime) -> None:
        session = await runtime.open_session(task(1), "a")
        try:
            await session.outcome()
        finally:
            await runtime.close_session(session)

    broken = source.replace("        return state\n", "        return object()\n")
    with pytest.raises(RolloutFailed, match="cannot be stored as JSON") as caught:
        with_runtime(tmp_path, work, broken)
    assert (caught.value.kind, caught.value.where) == ("environment_error", "outcome")
    assert life(tmp_path)[1] == Counter({"desk-1": 1})


def test_environment_code_may_name_its_own_failure(tmp_path: Path) -> None:
    raising = 'from rollbook.errors import RolloutFailed\n        raise RolloutFailed("judge_error", "judge", "away")'
    source = SYNC.replace('        self.note("open", task.id, os.getpid())\n', f"        {raising}\n")

    async def work(runtime: EnvironmentRuntime) -> None:
        await runtime.open_session(task(1), "a")

    with pytest.raises(RolloutFailed, match="away") as caught:
        with_runtime(tmp_path, work, source)
    assert caught.value.kind == "judge_error"
    assert eventually(lambda: not (tmp_path / "desk.log").exists(), 1)
