"""A worker's attempts under a limit that changes."""

from __future__ import annotations

import asyncio

from rollbook.book import KeyHistory
from rollbook.core import Rollout, Task
from rollbook.engine.concurrency import FixedLimit
from rollbook.engine.retries import AttemptResult
from rollbook.engine.worker import RolloutJob, Worker
from rollbook.errors import RolloutFailed


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
