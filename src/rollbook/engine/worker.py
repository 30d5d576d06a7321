"""The worker: takes jobs from a JobSource, runs them concurrently, retries within budgets, records every attempt.

A job is one key on its way through the worker. A JobSource is a book (`book_worker`) or a collector's memory
(`collector`). How many rollouts are in flight is a fixed number, or one found by trying (`concurrency`).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import msgspec

from rollbook.book import MAX_WORKER_DEATHS, Claim, KeyHistory
from rollbook.core import FAILURE_KINDS, Failure, Rollout, Task, derive_seed
from rollbook.engine.concurrency import AdaptiveLimit, FixedLimit
from rollbook.engine.costs import CostMeter
from rollbook.engine.retries import AttemptResult, run_until_final, wait_for_event
from rollbook.errors import Drained, EndpointDown, RolloutFailed


class RolloutJob(msgspec.Struct):
    """A key to run until it is scored or finally failed, with what this round has tried already."""

    task: Task
    sample: int
    past: KeyHistory
    claim: Claim | None = None
    row: int = -1

    @property
    def name(self) -> str:
        """The key as text."""
        return f"{self.task.id}#{self.sample}"


class JobSource(Protocol):
    """Where a worker gets its jobs and records results: a book, or a collector's memory."""

    async def next(self) -> RolloutJob | None:
        """Return the next job; wait while there may be one later, None when there will be none."""

    async def mark(self, job: RolloutJob, rollout: Rollout, final: bool) -> None:
        """Record an attempt; after a score or a final failure the job is over."""

    def idle(self) -> None:
        """Nothing is in flight: write now what would wait to be written with others."""


TICK_S = 0.1


class WorkerStats(msgspec.Struct):
    """Measurements of a worker."""

    in_flight: int = 0
    loop_lag_ms: float = 0.0
    worst_lag_ms: float = 0.0
    model_ms: float = 0.0
    verify_ms: float = 0.0

    def record_lag(self, seconds: float) -> None:
        """Record how late the event loop was."""
        lag = max(0.0, seconds) * 1000
        self.loop_lag_ms += 0.2 * (lag - self.loop_lag_ms)
        self.worst_lag_ms = max(self.worst_lag_ms, lag)

    def record_rollout(self, rollout: Rollout) -> None:
        """Record where a rollout's time went."""
        self.model_ms += 0.05 * (rollout.timing.model_s * 1000 - self.model_ms)
        self.verify_ms += 0.05 * (rollout.timing.verify_s * 1000 - self.verify_ms)


@contextmanager
def signal_handler(on_signal: Callable[[int], None], enabled: bool) -> Iterator[None]:
    """Call a function on the loop with every SIGINT and SIGTERM for a context, if enabled."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if enabled}
    for number in before:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)  # what follows may take a while: it can be interrupted


class AttemptRunner(Protocol):
    """Runs one attempt at a job to a score or a failure."""

    async def run_attempt(self, job: RolloutJob, round_number: int) -> AttemptResult:
        """Return the rollout of one attempt, and the error if it failed."""


class Worker:
    """Runs until there are no more jobs, or until it is drained or stopped, or a failure concerns all of them.

    `draining` is set when it is drained; `on_drain` is called then: it ends the waiting for a model that does not
    answer. `costs` counts what attempts cost, and may keep others from starting. `run_seed` is the run's: a rollout
    that is marked as lost is recorded with the seed of its key.
    """

    def __init__(
        self,
        jobs: JobSource,
        runner: AttemptRunner,
        limiter: FixedLimit | AdaptiveLimit,
        round_number: int,
        budgets: Mapping[str, int] | None = None,
        *,
        draining: asyncio.Event | None = None,
        on_drain: Callable[[], None] = lambda: None,
        costs: CostMeter | None = None,
        run_seed: int = 0,
    ) -> None:
        self._jobs, self._runner, self._limiter = jobs, runner, limiter
        self._on_drain, self._costs, self._run_seed = on_drain, costs, run_seed
        self._round, self._budgets = round_number, budgets or {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_tasks: set[asyncio.Task[None]] = set()
        self._exhausted = False
        self._error: BaseException | None = None
        self._draining = draining or asyncio.Event()
        self._changed = asyncio.Event()
        self._running_attempts, self._slot_freed = 0, asyncio.Event()
        self.stats = WorkerStats()

    @property
    def concurrency(self) -> int:
        """How many rollouts may be in flight now."""
        return self._limiter.limit

    def drain(self) -> None:
        """Take no new job; finish what is in flight. Rollouts that wait for a model server are given up."""
        self._draining.set()
        self._on_drain()
        self._changed.set()
        self._slot_freed.set()
        for task in self._idle_tasks:
            task.cancel()

    @property
    def ended_early(self) -> bool:
        """Whether it was drained before it ran out of jobs."""
        return self._draining.is_set() and not self._exhausted

    def stop(self) -> None:
        """Cancel what is in flight; nothing is written about it."""
        self.drain()
        for task in self._tasks:
            task.cancel()

    async def run(self, on_tick: Callable[[], None] | None = None) -> None:
        """Run jobs. Raises what concerns all of them: an endpoint that stays down, a full disk."""
        try:
            while not self._error:
                self._start_tasks()
                if not self._tasks:
                    break
                await self._wait(on_tick)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._error:
            raise self._error

    async def _wait(self, on_tick: Callable[[], None] | None) -> None:
        """Wait until a task ends or a tick is due; a late return is the lag of the loop."""
        self._changed.clear()
        before = time.monotonic()
        if not await wait_for_event(self._changed, TICK_S):
            self.stats.record_lag(time.monotonic() - before - TICK_S)
        if on_tick:
            on_tick()

    def _start_tasks(self) -> None:
        if self._draining.is_set() or self._exhausted:
            return
        while len(self._tasks) < self._limiter.limit:
            task = asyncio.create_task(self._run_jobs())
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() and not self._error:
            self._error = task.exception()
        if self._error or not self._tasks:
            self._changed.set()

    async def _run_jobs(self) -> None:
        """Run one job after another, while the limit allows this task."""
        this_task = asyncio.current_task()
        assert this_task
        while not self._draining.is_set() and len(self._tasks) <= self._limiter.limit:
            self._idle_tasks.add(this_task)
            try:
                job = await self._jobs.next()
            finally:
                self._idle_tasks.discard(this_task)
            if job is None:
                self._exhausted = True
                return
            self.stats.in_flight += 1
            try:
                await self._run_job(job)
            finally:
                self.stats.in_flight -= 1
                if not self.stats.in_flight:
                    self._jobs.idle()

    async def _run_job(self, job: RolloutJob) -> None:
        """Run attempts until the job is scored or out of budget."""
        if job.past.deaths >= MAX_WORKER_DEATHS:
            await self._mark_lost(job)
            return

        began = 0.0

        async def run_attempt() -> AttemptResult:
            nonlocal began
            while not self._may_start():
                await self._wait_for_slot()
            began = time.monotonic()
            self._running_attempts += 1
            try:
                return await self._runner.run_attempt(job, self._round)
            finally:
                self._running_attempts -= 1
                self._slot_freed.set()

        def record(rollout: Rollout, error: RolloutFailed | None, final: bool) -> Awaitable[None]:
            self.stats.record_rollout(rollout)
            if self._costs:  # before anything is awaited: an attempt that waits for this slot must see it
                self._costs.record(rollout)
            if error is not None and FAILURE_KINDS[error.kind].no_answer:
                self._limiter.record_overload(began)
            elif rollout.turns:
                self._limiter.record_answer(began, sum(turn.completion_tokens for turn in rollout.turns))
            return self._jobs.mark(job, rollout, final)

        try:
            await run_until_final(run_attempt, job.past, self._budgets, record=record, draining=self._draining)
        except (Drained, EndpointDown):
            # A drained worker gives up what waits; nothing is written about it, as if it had never begun.
            if not self._draining.is_set():
                raise

    def _may_start(self) -> bool:
        """Return whether one more attempt may run; the limit may have been lowered since its job began."""
        running = self._running_attempts
        return running < self._limiter.limit and (self._costs is None or self._costs.admits(running))

    async def _wait_for_slot(self) -> None:
        if self._draining.is_set():
            raise Drained("it waited for others to end")
        self._slot_freed.clear()
        await self._slot_freed.wait()

    async def _mark_lost(self, job: RolloutJob) -> None:
        why = f"in flight on {job.past.deaths} workers that died"
        failure = Failure.from_error(RolloutFailed("worker_lost", "worker", why))
        rollout = Rollout(
            task=job.task,
            sample=job.sample,
            seed=derive_seed(self._run_seed, job.task.id, job.sample),
            round=self._round,
            attempt=job.past.attempts + 1,
            failure=failure,
        )
        await self._jobs.mark(job, rollout, True)
