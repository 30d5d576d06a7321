"""One attempt at one rollout: open the state, let the agent play, note the outcome, verify."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import msgspec

from rollbook.agents.agent import Agent
from rollbook.agents.choice import agent_for
from rollbook.collect.asking import Asking, Restart
from rollbook.collect.job import Job
from rollbook.core.deadline import within
from rollbook.core.failure import Failure
from rollbook.core.manifest import Limits, Sampling, Terms, ToolFormat
from rollbook.core.rollout import Rollout, Timing, seed_of
from rollbook.core.task import Task
from rollbook.core.turn import Turn
from rollbook.environments.guard import cancelled_from_outside
from rollbook.environments.hosts import SeatLost
from rollbook.environments.seat import Seat
from rollbook.environments.stage import Stage
from rollbook.errors import ContextFull, LimitReached, RollbookError, RolloutFailed
from rollbook.models.continuing import continuing
from rollbook.models.model import Model

RESTARTS_ALLOWED = 16


class Player:
    """Everything an attempt needs, shared by all of them."""

    def __init__(
        self,
        model: Model,
        stages: Mapping[str, Stage],
        agent: Agent | None,
        sampling: Sampling,
        limits: Limits,
        run_seed: int,
        *,
        restart_across_versions: bool = False,
        tool_format: ToolFormat = "native",
        budgets: Mapping[str, int] | None = None,
        continue_tokens: bool = False,
    ) -> None:
        self._restart = restart_across_versions
        self._model, self._stages, self._budgets = model, stages, budgets or {}
        shared = Terms("", 1, sampling, limits, tool_format)
        self._terms = {name: stage.spec.terms or shared for name, stage in stages.items()}
        self._agents = {n: agent or agent_of(stage, self._terms[n]) for n, stage in stages.items()}
        self._run_seed = run_seed
        self._continues = continuing(model) if continue_tokens else None

    async def play(self, job: Job, round_number: int, *, verify: bool = True) -> tuple[Rollout, RolloutFailed | None]:
        """Play one attempt to a score or a failure. Stopped and cancellation pass through: they write nothing.

        Without `verify` the conversation is all: whoever asked for it scores it, or nobody does.
        """
        for _ in range(RESTARTS_ALLOWED):
            rollout = self._blank(job, round_number)
            clock = Clock()
            error = None
            try:
                await self._play(rollout, job, clock, verify)
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

    async def _play(self, rollout: Rollout, job: Job, clock: Clock, verify: bool) -> None:
        stage = self._stages[job.task.env]
        await self._converse(stage, rollout, job, clock)
        if not verify:
            return
        began = time.perf_counter()
        try:
            rollout.score = await stage.verify(job.task, rollout)
        finally:
            clock.verify_s += time.perf_counter() - began

    async def _converse(self, stage: Stage, rollout: Rollout, job: Job, clock: Clock) -> None:
        """From `open` to `outcome` within the rollout's deadline; closing the state is not on its time."""
        seat: Seat | None = None
        seconds = self._terms[job.task.env].limits.rollout_s
        began = time.perf_counter()
        try:
            async with within(seconds) as deadline:
                seat = await stage.seat(job.task, job.name)
                clock.environment_s += time.perf_counter() - began - seat.seconds
                await self._meet(seat, rollout, job, clock)
                rollout.outcome = await seat.outcome()
        except TimeoutError:
            if not deadline.expired():
                raise
            why = f"the rollout took longer than {seconds:g} s"
            raise RolloutFailed("rollout_timeout", "rollout", why) from None
        finally:
            if seat is not None:
                clock.environment_s += seat.seconds
                await stage.leave(seat)

    async def _meet(self, seat: Seat, rollout: Rollout, job: Job, clock: Clock) -> None:
        agent, terms = self._agents[job.task.env], self._terms[job.task.env]
        ask = Asking(
            self._model,
            terms.sampling,
            limits_of(job.task, terms.limits),
            rollout,
            job.name,
            clock,
            budgets=self._budgets,
            one_version=self._restart,
            continues=self._continues,
        )
        try:
            await agent.play(rollout, ask, seat)
        except ContextFull:
            rollout.turns.append(Turn(finish_reason="context_length"))
            rollout.ended = "context_length"
        except LimitReached as limit:
            rollout.ended = limit.which
        except (RollbookError, Restart, SeatLost):
            raise
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            why = "awaited something that was cancelled"
            raise RolloutFailed("agent_error", type(agent).__name__, why) from None
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            raise RolloutFailed("agent_error", type(agent).__name__, why) from error


def limits_of(task: Task, limits: Limits) -> Limits:
    """The limits of the run, or fewer turns if the task allows no more."""
    if task.max_turns is None or task.max_turns >= limits.max_turns:
        return limits
    return msgspec.structs.replace(limits, max_turns=task.max_turns)


def agent_of(stage: Stage, terms: Terms) -> Agent:
    """Who plays an environment on these terms."""
    return agent_for(stage.spec, terms.limits, terms.tool_format)


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
