"""Environments kept open: tasks go in one by one from anywhere, rollouts come out, failed ones too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollbook import Rollout, Task
from rollbook.core import Sampling
from rollbook.engine import Entry
from rollbook.errors import EndpointDown, Stopped, UsageError
from rollbook.trainers.formats import sample_of
from rollbook.trainers.rows import MissingReason, find_missing
from rollbook.trainers.task_runner import TaskRunner, _CollectorQueue
from support.endpoint import Endpoint
from support.sums import SUMS, write_sums

BROKEN = SUMS.replace("        return roll", "        assert task.answer != '4'\n        return roll")


def task(number: int) -> Task:
    return Task(f"sum-{number}", f"What is {number} + {number}?", answer=str(2 * number))


def test_tasks_are_played_side_by_side_and_come_back_to_whoever_asked(tmp_path: Path) -> None:
    async def go() -> list[Rollout]:
        async with (
            Endpoint(vllm=True, right=1.0) as endpoint,
            TaskRunner({"sums": Entry(env=write_sums(tmp_path, BROKEN))}, [endpoint.url]) as runner,
        ):
            runner.resume("5")
            tasks = [task(number % 4) for number in range(12)]
            return await asyncio.gather(*(runner.run_task("sums", one, Sampling(max_tokens=16)) for one in tasks))

    rollouts = asyncio.run(go())
    assert [r.task.id for r in rollouts] == [f"sum-{number % 4}" for number in range(12)]
    assert [r.failure is not None for r in rollouts] == [number % 4 == 2 for number in range(12)]
    assert len({r.seed for r in rollouts}) == 12
    assert {t.model_version for r in rollouts for t in r.turns} == {"5"}


def test_each_sampling_is_sent_as_it_was_asked_for(tmp_path: Path) -> None:
    async def go() -> set[float]:
        async with (
            Endpoint() as endpoint,
            TaskRunner({"sums": Entry(env=write_sums(tmp_path))}, [endpoint.url]) as runner,
        ):
            for temperature in (1.0, 0.0):
                await runner.run_task("sums", task(1), Sampling(temperature=temperature))
            return {body["temperature"] for body in endpoint.bodies}

    assert asyncio.run(go()) == {1.0, 0.0}


def test_rows_name_their_environment_unless_there_is_only_one() -> None:
    alone = TaskRunner({"a": Entry(env="x")}, [])
    assert alone.find_environment(None) == alone.find_environment("other") == "a"
    several = TaskRunner({"a": Entry(env="x"), "b": Entry(env="y")}, [])
    assert several.find_environment("b") == "b"
    with pytest.raises(UsageError, match=r"agent_ref 'c': .* known: a, b"):
        several.find_environment("c")
    with pytest.raises(UsageError, match="no environments"):
        TaskRunner({}, [])


def test_an_endpoint_that_stays_away_is_raised_to_everyone_who_waits(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            Endpoint() as endpoint,
            TaskRunner({"sums": Entry(env=write_sums(tmp_path))}, [endpoint.url], outage_s=0.5) as runner,
        ):
            await runner.run_task("sums", task(1), Sampling())
            await endpoint.switch("refuse")
            with pytest.raises(EndpointDown):
                await asyncio.gather(*(runner.run_task("sums", task(n), Sampling()) for n in range(3)))
            with pytest.raises(EndpointDown):
                await runner.run_task("sums", task(1), Sampling())
            await endpoint.switch("ok")
            runner.resume("7")
            assert (await runner.run_task("sums", task(1), Sampling())).turns[0].model_version == "7", "it is back"

    asyncio.run(go())


def test_an_endpoint_that_is_dead_at_the_start_costs_one_outage_for_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    really = _CollectorQueue.open

    async def open(table: _CollectorQueue) -> None:
        events.append("begun")
        try:
            await really(table)
        finally:
            events.append("ended")

    monkeypatch.setattr(_CollectorQueue, "open", open)

    async def go() -> list[Rollout | MissingReason]:
        sums = Entry(env=write_sums(tmp_path))
        async with TaskRunner({"a": sums, "b": sums}, ["http://127.0.0.1:9/v1"], outage_s=0.5) as runner:
            rows = [runner.try_task("ab"[n % 2], task(n), Sampling()) for n in range(6)]
            return await asyncio.gather(*rows)

    outcomes = asyncio.run(go())
    assert events == ["begun", "begun", "ended", "ended"], "one opening of each environment, side by side"
    assert {
        (reason.side, "no model answered for 0.5 s" in reason.why) for reason in find_missing(outcomes).values()
    } == {("infra", True)}
    assert len(find_missing(outcomes)) == 6


def test_a_row_that_is_given_up_does_not_end_the_opening_for_others(tmp_path: Path) -> None:
    async def go() -> Rollout:
        async with (
            Endpoint() as endpoint,
            TaskRunner({"sums": Entry(env=write_sums(tmp_path))}, [endpoint.url]) as runner,
        ):
            first = asyncio.ensure_future(runner.run_task("sums", task(1), Sampling()))
            second = asyncio.ensure_future(runner.run_task("sums", task(2), Sampling()))
            await asyncio.sleep(0)
            first.cancel()
            return await second

    assert asyncio.run(go()).task.id == "sum-2"


TALKING = (
    SUMS
    + """
    def reply(self, task, rollout, state):
        return "Wrong, I think. Do it again with care: " + task.messages[0].content
"""
)


@pytest.mark.parametrize("limits_rows", [True, False])
def test_all_turns_of_a_rollout_share_the_trainers_window(tmp_path: Path, limits_rows: bool) -> None:
    window = 160

    async def go() -> list[Rollout]:
        entries = {"talk": Entry(env=write_sums(tmp_path, TALKING))}
        async with (
            Endpoint(vllm=True) as endpoint,
            TaskRunner(entries, [endpoint.url], limits_rows=limits_rows) as runner,
        ):
            tasks = [task(number) for number in range(6)]
            return await asyncio.gather(*(runner.run_task("talk", one, Sampling(max_tokens=window)) for one in tasks))

    rollouts = asyncio.run(go())
    lengths = [len(row.response_ids) for rollout in rollouts for row in sample_of(rollout).sequences]
    if limits_rows:
        assert {rollout.ended for rollout in rollouts} == {"max_response_tokens"}
        assert min(len(rollout.turns) for rollout in rollouts) > 1
        assert max(lengths) <= window
    else:
        assert min(lengths) > window, "a trainer would have to cut every row"


def test_an_environments_own_limits_replace_the_trainers_window(tmp_path: Path) -> None:
    async def go() -> Rollout:
        entry = Entry(env=write_sums(tmp_path, TALKING), limits={"max_response_tokens": None, "max_turns": 4})
        async with (
            Endpoint(vllm=True) as endpoint,
            TaskRunner({"talk": entry}, [endpoint.url], limits_rows=True) as runner,
        ):
            return await runner.run_task("talk", task(1), Sampling(max_tokens=40))

    rollout = asyncio.run(go())
    assert (rollout.ended, len(rollout.turns)) == ("max_turns", 4)


def test_closing_ends_what_is_under_way(tmp_path: Path) -> None:
    async def go() -> None:
        async with Endpoint() as endpoint:
            async with TaskRunner({"sums": Entry(env=write_sums(tmp_path))}, [endpoint.url]) as runner:
                await runner.run_task("sums", task(1), Sampling())
                await endpoint.switch("hang")
                waiting = asyncio.ensure_future(runner.run_task("sums", task(2), Sampling()))
                await asyncio.sleep(0.1)
            with pytest.raises(Stopped, match="closed"):
                await waiting

    asyncio.run(go())


class Slow:
    """A table whose opening takes until it may end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        really = _CollectorQueue.open

        async def open(table: _CollectorQueue) -> None:
            await really(table)
            self.begun.set()
            await self.may_end.wait()

        monkeypatch.setattr(_CollectorQueue, "open", open)


def test_what_is_opened_during_a_pause_is_paused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        slow = Slow(monkeypatch)
        async with (
            Endpoint() as endpoint,
            TaskRunner({"sums": Entry(env=write_sums(tmp_path))}, [endpoint.url]) as runner,
        ):
            playing = asyncio.ensure_future(runner.run_task("sums", task(1), Sampling()))
            await slow.begun.wait()
            await runner.pause()
            slow.may_end.set()
            done, _ = await asyncio.wait({playing}, timeout=0.3)
            assert (done, len(endpoint.bodies)) == (set(), 0)
            runner.resume("8")
            assert (await playing).turns[0].model_version == "8"

    asyncio.run(go())


def test_what_is_opened_while_all_is_closed_is_closed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> set[str]:
        async with Endpoint() as endpoint:
            async with TaskRunner({"sums": Entry(env=write_sums(tmp_path))}, [endpoint.url]) as runner:
                await runner.run_task("sums", task(1), Sampling())
                slow = Slow(monkeypatch)
                late = asyncio.ensure_future(runner.run_task("sums", task(1), Sampling(temperature=0.5)))
                await slow.begun.wait()
            slow.may_end.set()
            with pytest.raises(Stopped, match="closed"):
                await late
            return {one.get_name() for one in asyncio.all_tasks()}

    assert not asyncio.run(go()) & {"task runner", "collector"}
