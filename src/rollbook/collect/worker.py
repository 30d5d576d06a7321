"""The worker: takes jobs from a desk, plays them side by side, tries again within budgets, and marks every one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from rollbook.book.ledger import DEATHS_ALLOWED
from rollbook.collect.concurrency import Auto, Fixed
from rollbook.collect.job import Desk, Job
from rollbook.collect.retry import delay_s, note_try
from rollbook.core.failure import Failure
from rollbook.core.rollout import Rollout
from rollbook.errors import RolloutFailed

GLANCE_S = 0.1
REFUSALS = ("model_unavailable", "model_timeout")


class Pulse(msgspec.Struct):
    """What a worker measures of itself."""

    in_flight: int = 0
    loop_lag_ms: float = 0.0
    worst_lag_ms: float = 0.0
    model_ms: float = 0.0
    verify_ms: float = 0.0

    def note_lag(self, seconds: float) -> None:
        """How late the loop came back to us."""
        lag = max(0.0, seconds) * 1000
        self.loop_lag_ms += 0.2 * (lag - self.loop_lag_ms)
        self.worst_lag_ms = max(self.worst_lag_ms, lag)

    def note_rollout(self, rollout: Rollout) -> None:
        """Where a rollout's time went."""
        self.model_ms += 0.05 * (rollout.timing.model_s * 1000 - self.model_ms)
        self.verify_ms += 0.05 * (rollout.timing.verify_s * 1000 - self.verify_ms)


class Plays(Protocol):
    """Whoever carries one attempt at a job to a score or a failure."""

    async def play(self, job: Job, round_number: int) -> tuple[Rollout, RolloutFailed | None]:
        """One attempt; the error goes with a rollout that failed."""


class Worker:
    """Runs until the desk has no more jobs, or until it is drained, stopped, or something that concerns all breaks."""

    def __init__(
        self,
        desk: Desk,
        player: Plays,
        limiter: Fixed | Auto,
        round_number: int,
        budgets: Mapping[str, int] | None = None,
    ) -> None:
        self._desk, self._player, self._limiter = desk, player, limiter
        self._round, self._budgets = round_number, budgets or {}
        self._lanes: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._exhausted = False
        self._broken: BaseException | None = None
        self._draining = asyncio.Event()
        self._changed = asyncio.Event()
        self.pulse = Pulse()

    @property
    def concurrency(self) -> int:
        """How many rollouts may be in flight now."""
        return self._limiter.limit

    def drain(self) -> None:
        """Take no new job; what is in flight is carried to its end."""
        self._draining.set()
        self._changed.set()
        for lane in self._waiting:
            lane.cancel()

    @property
    def ended_early(self) -> bool:
        """Whether it was told to end before the desk had no more jobs."""
        return self._draining.is_set() and not self._exhausted

    def stop(self) -> None:
        """Drop what is in flight; nothing is written about it."""
        self.drain()
        for lane in self._lanes:
            lane.cancel()

    async def run(self, glance: Callable[[], None] | None = None) -> None:
        """Work. Raises what broke everything: an endpoint that stays away, a disk that takes no more."""
        try:
            while not self._broken:
                self._fill()
                if not self._lanes:
                    break
                await self._wait(glance)
        finally:
            for lane in self._lanes:
                lane.cancel()
            await asyncio.gather(*self._lanes, return_exceptions=True)
        if self._broken:
            raise self._broken

    async def _wait(self, glance: Callable[[], None] | None) -> None:
        """Until a lane ends or a glance is due; how late we come back is the loop's lag."""
        self._changed.clear()
        before = time.monotonic()
        try:
            async with asyncio.timeout(GLANCE_S):
                await self._changed.wait()
        except TimeoutError:
            self.pulse.note_lag(time.monotonic() - before - GLANCE_S)
        if glance:
            glance()

    def _fill(self) -> None:
        if self._draining.is_set() or self._exhausted:
            return
        while len(self._lanes) < self._limiter.limit:
            lane = asyncio.create_task(self._lane())
            self._lanes.add(lane)
            lane.add_done_callback(self._ended)

    def _ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        if not lane.cancelled() and lane.exception() and not self._broken:
            self._broken = lane.exception()
        if self._broken or not self._lanes:
            self._changed.set()

    async def _lane(self) -> None:
        """One job after the other, while there is room for this lane."""
        me = asyncio.current_task()
        assert me
        while not self._draining.is_set() and len(self._lanes) <= self._limiter.limit:
            self._waiting.add(me)
            try:
                job = await self._next()
            finally:
                self._waiting.discard(me)
            if job is None:
                return
            self.pulse.in_flight += 1
            try:
                await self._carry(job)
            finally:
                self.pulse.in_flight -= 1
                if not self.pulse.in_flight:
                    self._desk.idle()

    async def _next(self) -> Job | None:
        job = await self._desk.next()
        if job is None:
            self._exhausted = True
        return job

    async def _carry(self, job: Job) -> None:
        """Attempt after attempt until the job is scored or out of budget."""
        if job.past.deaths >= DEATHS_ALLOWED:
            await self._mark_lost(job)
            return
        while True:
            rollout, error = await self._player.play(job, self._round)
            self._observe(rollout, error)
            final = error is None or note_try(job.past, error.kind, self._budgets)
            await self._desk.mark(job, rollout, final)
            if final or self._draining.is_set():
                return
            assert error
            await self._pause(delay_s(error, job.past))

    async def _pause(self, seconds: float) -> None:
        """Wait before another attempt; a drain does not wait."""
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            return

    def _observe(self, rollout: Rollout, error: RolloutFailed | None) -> None:
        self.pulse.note_rollout(rollout)
        if error is not None and error.kind in REFUSALS:
            self._limiter.refused()
        elif rollout.turns:
            self._limiter.finished(rollout.timing.model_s)

    async def _mark_lost(self, job: Job) -> None:
        why = f"in flight on {job.past.deaths} workers that died"
        failure = Failure.of(RolloutFailed("worker_lost", "worker", why))
        rollout = Rollout(
            task=job.task, sample=job.sample, seed=0, round=self._round, attempt=job.past.attempts + 1, failure=failure
        )
        await self._desk.mark(job, rollout, True)
