"""One attempt at one rollout: open the state, let the agent play, note the outcome, verify."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from rollbook.agents.agent import Agent
from rollbook.collect.job import Job
from rollbook.core.failure import Failure
from rollbook.core.manifest import Limits, Sampling
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout, Timing, seed_of
from rollbook.core.turn import Turn
from rollbook.environments.hosts import SeatLost
from rollbook.environments.stage import Seat, Stage, cancelled_from_outside
from rollbook.errors import ContextFull, RollbookError, RolloutFailed
from rollbook.models.model import Completion, Model

RESTARTS_ALLOWED = 16


class Restart(Exception):
    """Start the attempt again from its prompt: no fault of the rollout, no attempt lost."""


class Player:
    """Everything an attempt needs, shared by all of them."""

    def __init__(
        self,
        model: Model,
        stages: Mapping[str, Stage],
        agent: Agent,
        sampling: Sampling,
        limits: Limits,
        run_seed: int,
        *,
        restart_across_versions: bool = False,
    ) -> None:
        self._restart = restart_across_versions
        self._model, self._stages, self._agent = model, stages, agent
        self._sampling, self._limits, self._run_seed = sampling, limits, run_seed

    async def play(self, job: Job, round_number: int) -> tuple[Rollout, RolloutFailed | None]:
        """Play one attempt to a score or a failure. Stopped and cancellation pass through: they write nothing."""
        for _ in range(RESTARTS_ALLOWED):
            rollout = self._blank(job, round_number)
            clock = Clock()
            error = None
            try:
                await self._play(rollout, job, clock)
            except (SeatLost, Restart):
                continue
            except RolloutFailed as failed:
                error = failed
                rollout.failure = Failure.of(failed)
            rollout.timing = clock.timing()
            return rollout, error
        error = RolloutFailed("environment_error", "environment", f"its process was lost {RESTARTS_ALLOWED} times")
        rollout.failure = Failure.of(error)
        return rollout, error

    def _blank(self, job: Job, round_number: int) -> Rollout:
        return Rollout(
            task=job.task,
            sample=job.sample,
            seed=seed_of(self._run_seed, job.task.id, job.sample),
            round=round_number,
            attempt=job.past.attempts + 1,
            messages=job.task.messages,
            turns=[],
        )

    async def _play(self, rollout: Rollout, job: Job, clock: Clock) -> None:
        try:
            async with asyncio.timeout(self._limits.rollout_s) as deadline:
                await self._converse(rollout, job, clock)
        except TimeoutError:
            if not deadline.expired():
                raise
            why = f"the rollout took longer than {self._limits.rollout_s:g} s"
            raise RolloutFailed("rollout_timeout", "rollout", why) from None
        began = time.perf_counter()
        try:
            rollout.score = await self._stages[job.task.env].verify(job.task, rollout)
        finally:
            clock.verify_s += time.perf_counter() - began

    async def _converse(self, rollout: Rollout, job: Job, clock: Clock) -> None:
        stage = self._stages[job.task.env]
        if not stage.has_state:
            await self._meet(rollout, job, clock)
            return
        began = time.perf_counter()
        seat = await stage.seat(job.task, job.name)
        clock.environment_s += time.perf_counter() - began
        try:
            await self._meet(rollout, job, clock)
            began = time.perf_counter()
            rollout.outcome = await seat.outcome()
            clock.environment_s += time.perf_counter() - began
        finally:
            await close_seat(seat)

    async def _meet(self, rollout: Rollout, job: Job, clock: Clock) -> None:
        name, seed = job.name, rollout.seed

        async def ask(messages: Sequence[Message]) -> Completion:
            began = time.perf_counter()
            try:
                completion = await self._model.complete(messages, self._sampling, seed=seed, rollout=name)
            finally:
                clock.model_s += time.perf_counter() - began
            if self._restart and rollout.turns and rollout.turns[0].model_version != completion.turn.model_version:
                raise Restart
            return completion

        try:
            await self._agent.play(rollout, ask)
        except ContextFull:
            rollout.turns.append(Turn(finish_reason="context_length"))
        except (RollbookError, Restart, SeatLost):
            raise
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            why = "awaited something that was cancelled"
            raise RolloutFailed("agent_error", type(self._agent).__name__, why) from None
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            raise RolloutFailed("agent_error", type(self._agent).__name__, why) from error


async def close_seat(seat: Seat) -> None:
    """Close a seat whatever happened; a state that will not close must not cost a finished rollout its score."""
    try:
        await seat.close()
    except (RolloutFailed, SeatLost):
        return


class Clock:
    """Where an attempt's seconds go. Each part is a number to add to, for this runs a thousand times a second."""

    __slots__ = ("_began", "_start", "environment_s", "model_s", "verify_s")

    def __init__(self) -> None:
        self._start, self._began = time.time(), time.perf_counter()
        self.environment_s = self.model_s = self.verify_s = 0.0

    def timing(self) -> Timing:
        """The record of it, rounded to what a clock can tell."""
        return Timing(
            round(self._start, 3),
            round(time.perf_counter() - self._began, 6),
            round(self.model_s, 6),
            round(self.environment_s, 6),
            round(self.verify_s, 6),
        )
