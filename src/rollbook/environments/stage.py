"""Where an environment is played: sync methods in environment processes, async ones on the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec

from rollbook.core.json import JSON
from rollbook.core.manifest import EnvironmentSpec, Limits
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score, as_score
from rollbook.core.task import Task
from rollbook.environments.environment import Environment, State
from rollbook.environments.frames import Call, Record
from rollbook.environments.hosts import Hosts
from rollbook.environments.process import HostProcess
from rollbook.errors import InvalidReward, RolloutFailed

GRACE_S = 1.0


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
        self._spec, self._limits, self._make = spec, limits, environment
        self._hosts = Hosts(spec, limits, run=run, most=hosts, log=log) if "sync" in (spec.verify, spec.state) else None
        self._environment: Environment | None = None

    async def open(self) -> None:
        """Start what the environment needs."""
        if "async" in (self._spec.verify, self._spec.state):
            self._environment = self._make()
        if self._hosts:
            await self._hosts.open()

    async def close(self) -> None:
        """End what was started."""
        if self._hosts:
            await self._hosts.close()

    @property
    def has_state(self) -> bool:
        """Whether rollouts have a state that must be opened and closed."""
        return self._spec.state != "none"

    async def seat(self, task: Task, name: str) -> Seat:
        """Open the state of one rollout."""
        if self._spec.state == "async":
            assert self._environment
            seat: Seat = LoopSeat(self._environment, self._limits)
        else:
            assert self._hosts
            seat = HostSeat(self._hosts, await self._hosts.take_seat(), name, self._limits)
        await seat.open(task)
        return seat

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score a rollout, or raise the failure its verifier came to."""
        if self._spec.verify == "async":
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


class Seat(Protocol):
    """The state of one rollout."""

    async def open(self, task: Task) -> None:
        """Make it."""

    async def outcome(self) -> JSON:
        """What of it belongs into the record."""

    async def close(self) -> None:
        """Let go of it."""


class LoopSeat:
    """State that lives on the worker's loop."""

    def __init__(self, environment: Environment, limits: Limits) -> None:
        self._environment, self._limits = environment, limits
        self._state: State = None

    async def _call(self, name: str, work: Awaitable[JSON] | JSON) -> JSON:
        if not inspect.isawaitable(work):
            return work
        return await guarded(work, self._limits.tool_s, name, "environment_error", "environment_error")

    async def open(self, task: Task) -> None:
        """Make the state."""
        self._state = await self._call("open", self._environment.open(task))

    async def outcome(self) -> JSON:
        """What of the state belongs into the record."""
        return await self._call("outcome", self._environment.outcome(self._state))

    async def close(self) -> None:
        """Let go of the state."""
        await self._call("close", self._environment.close(self._state))


class HostSeat:
    """State that lives in one environment process."""

    def __init__(self, hosts: Hosts, process: HostProcess, name: str, limits: Limits) -> None:
        self._hosts, self._process, self._name, self._limits = hosts, process, name, limits

    async def _call(self, method: str, task: Task | None = None) -> JSON:
        call = Call(method, task.line() if task else None, None, self._name)
        return (await self._hosts.seated_call(self._process, call, self._limits.tool_s)).value

    async def open(self, task: Task) -> None:
        """Make the state over there."""
        await self._call("open", task)

    async def outcome(self) -> JSON:
        """What of the state belongs into the record."""
        return await self._call("outcome")

    async def close(self) -> None:
        """Let go of the state and the seat."""
        self._process.seats -= 1
        if self._process.alive:
            await self._call("close")


async def guarded(work: Awaitable[JSON], seconds: float, where: str, broken: str, late: str) -> JSON:
    """Await environment code with a deadline that it cannot refuse: what will not be cancelled is left behind."""
    task = asyncio.create_task(contained(work, where, broken), name="environment code")
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
    raise RolloutFailed(late, where, f"{where} took longer than {seconds:g} s")


async def contained(work: Awaitable[JSON], where: str, broken: str) -> JSON:
    """Environment code whose exceptions, whatever they are, become failures of its kind."""
    try:
        return await work
    except InvalidReward as error:
        raise RolloutFailed("invalid_reward", where, str(error)) from None
    except asyncio.CancelledError:
        if cancelled_from_outside():
            raise
        raise RolloutFailed(broken, where, f"{where} awaited something that was cancelled") from None
    except (Exception, SystemExit) as error:
        raise RolloutFailed(broken, where, f"{type(error).__name__}: {error}") from error


def cancelled_from_outside() -> bool:
    """Whether it is us who are being cancelled, as against something that was merely awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
