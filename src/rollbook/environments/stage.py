"""Where an environment is played: sync methods in environment processes, async ones on the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec

from rollbook.core.manifest import EnvironmentSpec, Limits
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score, as_score
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.environments.frames import Call, Record
from rollbook.environments.guard import guarded
from rollbook.environments.hosts import Hosts, SeatLost
from rollbook.environments.seat import HostSeat, LoopSeat, NoSeat, Seat
from rollbook.environments.toolbox import Toolbox
from rollbook.errors import InvalidReward, RolloutFailed

CLOSING_S = 5.0
"""How long states that are being closed may hold up the end of the stage."""


class Stage:
    """One environment, ready to be played by many rollouts at once."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        limits: Limits,
        *,
        environment: Callable[[], Environment],
        run: Path | None = None,
        hosts: int = 2,
        log: Path | None = None,
    ) -> None:
        self.spec = spec
        self._limits, self._make = limits, environment
        self._hosts = Hosts(spec, limits, run=run, most=hosts, log=log) if "sync" in (spec.verify, spec.state) else None
        self._environment: Environment | None = None
        self._toolbox: Toolbox | None = None
        self._numbers = count()
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start what the environment needs."""
        if "async" in (self.spec.verify, self.spec.state):
            self._environment = self._make()
            self._toolbox = Toolbox(self._environment, self._limits.tool_chars)
        if self._hosts:
            await self._hosts.open()

    async def close(self) -> None:
        """End what was started, after the states that are being closed."""
        if self._closing:
            _, late = await asyncio.wait(set(self._closing), timeout=CLOSING_S)
            for task in late:
                task.cancel()
        if self._hosts:
            await self._hosts.close()

    async def seat(self, task: Task, name: str) -> Seat:
        """Open the state of one rollout; whoever gets a seat must `leave` it."""
        if self.spec.state == "none":
            return NoSeat()
        seat = await self._free_seat(f"{name}/{next(self._numbers)}")
        try:
            await seat.open(task)
        except BaseException:
            await self.leave(seat)  # it may have been opened though nobody waited for that any more
            raise
        return seat

    async def _free_seat(self, name: str) -> Seat:
        if self.spec.state == "async":
            assert self._environment
            assert self._toolbox
            return LoopSeat(self._environment, self._toolbox, self.spec.tools, self._limits)
        assert self._hosts
        return HostSeat(self._hosts, await self._hosts.take_seat(), name, self.spec.tools, self._limits)

    async def leave(self, seat: Seat) -> None:
        """Close the state of one rollout, once, whatever becomes of the one who waits for it."""
        if isinstance(seat, NoSeat):
            return
        closing = asyncio.create_task(_close(seat), name="closing")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score a rollout, or raise the failure its verifier came to."""
        if self.spec.verify == "async":
            return await self._verify_here(task, rollout)
        assert self._hosts
        call = Call("verify", task.line(), Record.of(rollout))
        reply = await self._hosts.call(call, self._limits.verify_s)
        try:
            return msgspec.convert(reply.value, Score)
        except (msgspec.ValidationError, InvalidReward) as error:
            raise RolloutFailed("invalid_reward", "verify", str(error)) from None

    async def _verify_here(self, task: Task, rollout: Rollout) -> Score:
        assert self._environment
        verdict = self._environment.verify(task, rollout)
        assert inspect.isawaitable(verdict)
        value = await guarded(verdict, self._limits.verify_s, "verify", "verifier_error", "verifier_timeout")
        try:
            score = as_score(value)
            msgspec.json.encode(score)
        except (InvalidReward, TypeError, ValueError, OverflowError) as error:
            raise RolloutFailed("invalid_reward", "verify", str(error)) from None
        return score


async def _close(seat: Seat) -> None:
    """A state that will not close must not cost a finished rollout its score."""
    try:
        await seat.close()
    except (RolloutFailed, SeatLost):
        return
