"""A worker's attempts under a limit that changes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from rollbook.book import KeyHistory
from rollbook.core import Rollout, Settings, Task, Timing, Turn, derive_seed
from rollbook.engine import worker as module
from rollbook.engine.concurrency import FixedLimit
from rollbook.engine.costs import CostMeter
from rollbook.engine.retries import AttemptResult
from rollbook.engine.worker import RolloutJob, Worker, WorkerStats, signal_handler
from rollbook.errors import EndpointDown, RolloutFailed
from support.books import make_book


class Jobs:
    """So many jobs."""

    def __init__(self, count: int) -> None:
        self.left, self.marked = count, 0

    async def next(self) -> RolloutJob | None:
        self.left -= 1
        return RolloutJob(Task(f"t{self.left}", "?"), 0, KeyHistory()) if self.left >= 0 else None

    async def mark(self, job: RolloutJob, rollout: Rollout, final: bool) -> None:
        self.marked += final

    def idle(self) -> None:
        pass


class RefusedOnce:
    """Refuses the first attempts when so many of them run, and lowers the limit; later ones take a moment."""

    def __init__(self, limiter: FixedLimit) -> None:
        self.limiter, self.refused, self.all = limiter, set[str](), asyncio.Event()
        self.running = self.most = self.retried = 0

    async def run_attempt(self, job: RolloutJob, round_number: int) -> AttemptResult:
        rollout = Rollout(task=job.task, sample=0, seed=0, messages=[], turns=[])
        if job.task.id not in self.refused:
            self.refused.add(job.task.id)
            if len(self.refused) == self.limiter.limit:
                self.limiter.limit = 4
                self.all.set()
            await self.all.wait()
            return rollout, RolloutFailed("worker_lost", "worker", "a failure without a delay")
        self.running, self.retried = self.running + 1, self.retried + 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.02)
        self.running -= 1
        return rollout, None


def test_retries_wait_for_a_limit_that_was_lowered() -> None:
    async def go() -> None:
        jobs, limiter = Jobs(40), FixedLimit(40)
        runner = RefusedOnce(limiter)
        await Worker(jobs, runner, limiter, 1).run()
        assert (jobs.marked, runner.most) == (40, 4)

    asyncio.run(go())


def test_what_waits_for_others_does_not_begin_when_the_worker_is_drained() -> None:
    async def go() -> None:
        jobs, limiter = Jobs(40), FixedLimit(40)
        runner = RefusedOnce(limiter)
        worker = Worker(jobs, runner, limiter, 1)
        running = asyncio.create_task(worker.run())
        while runner.running < 4:
            await asyncio.sleep(0)
        worker.drain()
        await running
        assert (runner.retried, jobs.marked, len(runner.refused)) == (4, 4, 40)
        assert worker.ended_early

    asyncio.run(go())


def make_rollout(model_s: float = 0.0, verify_s: float = 0.0) -> Rollout:
    timing = Timing(0.0, model_s + verify_s, model_s, 0.0, verify_s)
    return Rollout(task=Task("t", "?"), sample=0, seed=0, timing=timing)


def test_means_follow_what_is_measured_and_the_worst_lag_is_kept() -> None:
    stats = WorkerStats()
    for seconds in (0.1, 0.0, -1.0):
        stats.record_lag(seconds)
    assert stats.worst_lag_ms == 100.0
    assert stats.loop_lag_ms == pytest.approx(100 * 0.2 * 0.8 * 0.8)
    stats.record_rollout(make_rollout(2.0, 0.4))
    stats.record_rollout(make_rollout(0.0, 0.4))
    assert stats.model_ms == pytest.approx(2000 * 0.05 * 0.95)
    assert stats.verify_ms == pytest.approx(400 * (0.05 + 0.05 * 0.95))


class Kept(Jobs):
    """Jobs that keep what is marked."""

    def __init__(self, *pasts: KeyHistory) -> None:
        super().__init__(0)
        self.pasts = list(pasts)
        self.kept: list[tuple[Rollout, bool]] = []
        self.idles = 0

    async def next(self) -> RolloutJob | None:
        return RolloutJob(Task("t", "?"), 7, self.pasts.pop(0)) if self.pasts else None

    async def mark(self, job: RolloutJob, rollout: Rollout, final: bool) -> None:
        self.kept.append((rollout, final))

    def idle(self) -> None:
        self.idles += 1


class Answers:
    """Answers every attempt after a while, or fails."""

    def __init__(self, error: BaseException | None = None, seconds: float = 0.0) -> None:
        self.error, self.seconds, self.attempts = error, seconds, 0

    async def run_attempt(self, job: RolloutJob, round_number: int) -> AttemptResult:
        self.attempts += 1
        await asyncio.sleep(self.seconds)
        rollout = Rollout(task=job.task, sample=job.sample, seed=0, turns=[Turn(None, None, None, 3, 2)] * 2)
        if isinstance(self.error, RolloutFailed):
            return rollout, self.error
        if self.error:
            raise self.error
        return rollout, None


def test_a_key_that_was_in_flight_on_three_dead_workers_fails_without_an_attempt() -> None:
    pasts = [KeyHistory(deaths=deaths, tries={"model_timeout": 1}) for deaths in (2, 3)]
    jobs, runner = Kept(*pasts), Answers()
    worker = Worker(jobs, runner, FixedLimit(1), 5, run_seed=3)
    asyncio.run(worker.run())
    assert runner.attempts == 1
    lost, final = jobs.kept[1]
    assert final
    assert lost.failure
    assert (lost.failure.kind, lost.failure.where) == ("worker_lost", "worker")
    assert lost.failure.message == "in flight on 3 workers that died"
    assert (lost.sample, lost.seed, lost.round, lost.attempt) == (7, derive_seed(3, "t", 7), 5, 2)
    assert (jobs.idles, worker.stats.in_flight, worker.ended_early) == (2, 0, False)


class Limit(FixedLimit):
    """A limit that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(1)
        self.told: list[tuple[str, int]] = []

    def record_answer(self, began: float, tokens: int) -> None:
        assert 0 <= time.monotonic() - began < 60
        self.told.append(("answer", tokens))

    def record_overload(self, began: float) -> None:
        assert 0 <= time.monotonic() - began < 60
        self.told.append(("overload", 0))


@pytest.mark.parametrize(
    ("kind", "told"),
    [(None, ("answer", 4)), ("model_timeout", ("overload", 0)), ("verifier_error", ("answer", 4))],
)
def test_only_attempts_without_an_answer_are_an_overload(kind: str | None, told: tuple[str, int]) -> None:
    limit, error = Limit(), RolloutFailed(kind, "here", "why") if kind else None
    asyncio.run(Worker(Kept(KeyHistory()), Answers(error), limit, 1, {"model_timeout": 1}).run())
    assert limit.told == [told]


def test_what_concerns_all_jobs_ends_the_worker_unless_it_is_drained() -> None:
    async def go(drained: bool) -> Worker:
        jobs, error = Kept(*(KeyHistory() for _ in range(9))), EndpointDown("all are down", {})
        calls: list[str] = []
        worker = Worker(jobs, Answers(error, 0.01), FixedLimit(2), 1, on_drain=lambda: calls.append("drained"))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)
        if drained:
            worker.drain()
            assert calls == ["drained"]
        await running
        return worker

    with pytest.raises(EndpointDown, match="all are down"):
        asyncio.run(go(drained=False))
    assert asyncio.run(go(drained=True)).ended_early


def test_a_worker_that_is_stopped_cancels_what_is_in_flight() -> None:
    async def go() -> None:
        jobs, runner = Kept(*(KeyHistory() for _ in range(9))), Answers(seconds=60)
        worker = Worker(jobs, runner, FixedLimit(3), 1)
        assert worker.concurrency == 3
        running = asyncio.create_task(worker.run())
        while runner.attempts < 3:
            await asyncio.sleep(0)
        assert worker.stats.in_flight == 3
        worker.stop()
        await asyncio.wait_for(running, 5)
        assert (jobs.kept, worker.stats.in_flight, worker.ended_early) == ([], 0, True)

    asyncio.run(go())


def test_every_tick_is_told_and_its_lag_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    ticks = []
    worker = Worker(Kept(KeyHistory()), Answers(seconds=0.1), FixedLimit(1), 1)
    asyncio.run(worker.run(lambda: ticks.append(worker.stats.in_flight)))
    assert len(ticks) > 2
    assert ticks[0] == 1
    assert 0 <= worker.stats.worst_lag_ms < 60_000


def test_signals_are_handled_only_where_that_is_asked_for_and_only_meanwhile() -> None:
    async def go() -> None:
        for enabled in (False, True):
            received: list[int] = []
            before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
            with signal_handler(received.append, enabled):
                changed = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
                assert changed == enabled
                if enabled:
                    os.kill(os.getpid(), signal.SIGTERM)
                    os.kill(os.getpid(), signal.SIGINT)
                    while len(received) < 2:
                        await asyncio.sleep(0.01)
                    assert sorted(received) == [signal.SIGINT, signal.SIGTERM]
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    asyncio.run(go())


class Blocks(Answers):
    """Answers that keep the event loop from running anything else."""

    async def run_attempt(self, job: RolloutJob, round_number: int) -> AttemptResult:
        await asyncio.sleep(0.02)
        time.sleep(self.seconds)
        return await super().run_attempt(job, round_number)


def test_a_loop_that_is_blocked_is_a_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.03)
    worker = Worker(Kept(KeyHistory()), Blocks(seconds=0.2), FixedLimit(1), 1)
    asyncio.run(worker.run())
    assert 100 < worker.stats.worst_lag_ms < 60_000
    assert worker.stats.loop_lag_ms > 0


def test_what_attempts_cost_is_recorded_before_others_start(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    costs = CostMeter(book.path, Settings(price="in=1000000,out=1000000", max_cost=10.0))
    jobs, runner = Kept(*(KeyHistory() for _ in range(3))), Answers()
    worker = Worker(jobs, runner, FixedLimit(2), 1, costs=costs)

    async def go() -> None:
        running = asyncio.create_task(worker.run())
        while not costs.stop_reason:
            await asyncio.sleep(0)
        worker.drain()
        await running

    asyncio.run(asyncio.wait_for(go(), 30))
    assert (runner.attempts, costs.cost, len(jobs.kept)) == (2, 20.0, 2)
