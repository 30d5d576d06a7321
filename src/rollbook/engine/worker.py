"""The worker: takes jobs from a JobSource, runs them concurrently, retries within budgets, records every attempt.

A job is one key on its way through the worker. A JobSource is a book (`book_worker`) or a collector's memory
(`collector`). How many rollouts are in flight is a fixed number, or one found by trying: slow start, then additive
increase and multiplicative decrease.
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
from rollbook.core import FAILURE_KINDS, Failure, Rollout, Task
from rollbook.engine.retries import AttemptResult, run_until_final, wait_for_event
from rollbook.errors import EndpointDown, RolloutFailed, UsageError


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


START_LIMIT = 2
MAX_CONCURRENCY = 4096
SPARE_FILES = 128


class FixedLimit:
    """A constant limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def record_answer(self, seconds: float) -> None:
        """Ignore an answer."""

    def record_overload(self) -> None:
        """Ignore an overload."""


class AdaptiveLimit:
    """Slow start, then additive increase and multiplicative decrease.

    Adjusted after every window of twice the limit of answers: it doubles while that gives more answers per second;
    then it rises slowly, and falls when answers take twice their best time without being more, or at once when the
    endpoint refuses.
    """

    def __init__(self, max_limit: int = MAX_CONCURRENCY, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = min(START_LIMIT, max_limit)
        self._max_limit, self._clock = max_limit, clock
        self._doubling = True
        self._rate = 0.0
        self._best_s = float("inf")
        self._start_window()

    def _start_window(self) -> None:
        self._since, self._answers, self._seconds, self._overloaded = self._clock(), 0, 0.0, False

    def record_answer(self, seconds: float) -> None:
        """Count an answer; adjust the limit when the window is full."""
        self._answers += 1
        self._seconds += seconds
        if self._answers >= 2 * self.limit:
            self._adjust()

    def _adjust(self) -> None:
        elapsed = max(self._clock() - self._since, 1e-9)
        rate, mean_s = self._answers / elapsed, self._seconds / self._answers
        self._best_s = min(self._best_s, mean_s)
        better, slow = rate > 1.1 * self._rate, mean_s > 2 * self._best_s
        if self._doubling and better:
            self._set_limit(self.limit * 2)
        elif slow and not better:
            self._doubling = False
            self._set_limit(int(self.limit * 0.8))
        else:
            self._doubling = False
            self._set_limit(self.limit + max(1, self.limit // 16))
        self._rate = rate
        self._start_window()

    def record_overload(self) -> None:
        """Halve the limit at once, but only once per window: one overload fails many calls at the same time."""
        self._doubling = False
        if not self._overloaded:
            self._set_limit(self.limit // 2)
            self._start_window()
            self._overloaded = True

    def _set_limit(self, limit: int) -> None:
        self.limit = max(1, min(self._max_limit, limit))


def make_limiter(wanted: int | str, say: Callable[[str], None]) -> FixedLimit | AdaptiveLimit:
    """Return the requested limiter, within what the file-descriptor limit allows."""
    if wanted == "auto":
        return AdaptiveLimit(limit_by_open_files(MAX_CONCURRENCY, say, quiet=True))
    if not isinstance(wanted, int) or wanted < 1:
        raise UsageError(f"--concurrency {wanted}: give a number from 1 on, or auto")
    return FixedLimit(limit_by_open_files(wanted, say))


def limit_by_open_files(wanted: int, say: Callable[[str], None], *, quiet: bool = False) -> int:
    """Raise the soft limit of open files for this many connections; if that is not enough, cap and report it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    ceiling = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, ceiling), hard))
    capped = max(1, max(soft, ceiling) - SPARE_FILES)
    if capped < wanted and not quiet:
        say(f"concurrency {wanted} needs {need} open files, the hard limit is {hard}: running {capped} at a time")
    return min(wanted, capped)


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
    answer.
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
    ) -> None:
        self._jobs, self._runner, self._limiter = jobs, runner, limiter
        self._on_drain = on_drain
        self._round, self._budgets = round_number, budgets or {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_tasks: set[asyncio.Task[None]] = set()
        self._exhausted = False
        self._error: BaseException | None = None
        self._draining = draining or asyncio.Event()
        self._changed = asyncio.Event()
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

        def run_attempt() -> Awaitable[AttemptResult]:
            return self._runner.run_attempt(job, self._round)

        def record(rollout: Rollout, error: RolloutFailed | None, final: bool) -> Awaitable[None]:
            self.stats.record_rollout(rollout)
            if error is not None and FAILURE_KINDS[error.kind].no_answer:
                self._limiter.record_overload()
            elif rollout.turns:
                self._limiter.record_answer(rollout.timing.model_s)
            return self._jobs.mark(job, rollout, final)

        try:
            await run_until_final(run_attempt, job.past, self._budgets, record=record, draining=self._draining)
        except EndpointDown:
            # A drained worker gives up what waits for a server; nothing is written about it, as if it had never begun.
            if not self._draining.is_set():
                raise

    async def _mark_lost(self, job: RolloutJob) -> None:
        why = f"in flight on {job.past.deaths} workers that died"
        failure = Failure.from_error(RolloutFailed("worker_lost", "worker", why))
        rollout = Rollout(
            task=job.task, sample=job.sample, seed=0, round=self._round, attempt=job.past.attempts + 1, failure=failure
        )
        await self._jobs.mark(job, rollout, True)
