"""Where an environment is played: sync methods in environment processes, async ones on the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from rollbook.core.json import JSON
from rollbook.core.manifest import EnvironmentSpec, Limits
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score, as_score
from rollbook.core.task import Task
from rollbook.environments.court import Court, Judge
from rollbook.environments.environment import Environment, folder_of
from rollbook.environments.frames import Call, Record
from rollbook.environments.guard import guarded
from rollbook.environments.hosts import Hosts, SeatLost
from rollbook.environments.seat import HostSeat, LoopSeat, NoSeat, Seat, names_of
from rollbook.environments.source import explain
from rollbook.environments.toolbox import Toolbox
from rollbook.errors import InvalidReward, RollbookError, RolloutFailed, UsageError

if TYPE_CHECKING:
    from rollbook.environments.mcp.servers import Servers

CLOSING_S = 5.0
"""How long states that are being closed may hold up the end of the stage."""

STARTING_S = 120.0
STOPPING_S = 30.0


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
        court: Court | None = None,
        playing: bool = True,
    ) -> None:
        self.spec = spec
        self._run, self._log, self._playing = run, log, playing
        self._servers: Servers | None = None
        self._prefix = spec.terms.prefix if spec.terms else ""
        self._court = court if spec.appeals else None
        self._limits, self._make = limits, environment
        self._hosts = Hosts(spec, limits, run=run, most=hosts, log=log) if "sync" in (spec.verify, spec.state) else None
        self._environment: Environment | None = None
        self._toolbox: Toolbox | None = None
        self._numbers = count()
        self._closing: set[asyncio.Task[None]] = set()
        self._turns = Turnstile(None)
        self._places = Turnstile(None)
        self._begun = False

    async def open(self) -> None:
        """Start what the environment needs."""
        if self._court or "async" in (self.spec.verify, self.spec.state):
            self._environment = environment = self._make()
            self._toolbox = Toolbox(environment, self._limits.tool_chars)
            await self._begin(environment)
            if environment.mcp and self._playing:
                await self._reach(environment)
        if self._hosts:
            await self._hosts.open()

    async def _begin(self, environment: Environment) -> None:
        """Start it; one that will not start refuses the run, before any rollout, in one line."""
        self._begun = True
        try:
            async with asyncio.timeout(STARTING_S):
                await environment.start()
        except TimeoutError:
            raise UsageError(f"environment {self.spec.spec} did not start in {STARTING_S:g} s") from None
        except RollbookError as error:
            raise UsageError(f"environment {self.spec.spec} cannot start: {' '.join(str(error).split())}") from error
        except (Exception, SystemExit) as error:
            raise UsageError(f"environment {self.spec.spec} cannot start: {explain(error)}") from error
        self._turns = Turnstile(environment.verify_at_once)
        self._places = Turnstile(environment.states_at_once)

    async def _reach(self, environment: Environment) -> None:
        """Reach the MCP servers of the environment; their tools stay those that the run began with."""
        try:
            from rollbook.environments.mcp.servers import Servers
        except ImportError as error:
            raise UsageError(
                f"environment {self.spec.spec} has MCP servers, which need a package: "
                f"pip install 'rollbook[mcp]' ({error})"
            ) from None
        self._servers = Servers(environment.mcp, folder_of(environment), self._log)
        own = {name: f"the @tool method {name}" for name in names_of(self.spec.tools)}
        try:
            await self._servers.start(own)
        except UsageError as error:
            raise UsageError(f"environment {self.spec.spec} cannot start: {error}") from None
        if self._run:
            name = self._prefix[:-1] or self.spec.target.rpartition(":")[2]
            self._servers.keep(self._run / "tools" / f"{quote(name, safe='')}.json")

    async def close(self) -> None:
        """End what was started, after the states that are being closed."""
        if self._closing:
            _, late = await asyncio.wait(set(self._closing), timeout=CLOSING_S)
            for task in late:
                task.cancel()
        if self._hosts:
            await self._hosts.close()
        if self._servers:
            await self._servers.stop()
        if self._environment and self._begun:
            self._begun = False
            async with asyncio.timeout(STOPPING_S):
                await self._environment.stop()

    async def seat(self, task: Task, name: str) -> Seat:
        """Open the state of one rollout; whoever gets a seat must `leave` it."""
        if self.spec.state == "none":
            return NoSeat()
        await self._places.enter()
        try:
            seat = await self._free_seat(f"{name}/{next(self._numbers)}")
        except BaseException:
            self._places.leave()
            raise
        try:
            await seat.open(self._own(task))
        except BaseException:
            await self.leave(seat)  # it may have been opened though nobody waited for that any more
            raise
        return seat

    async def _free_seat(self, name: str) -> Seat:
        if self.spec.state == "async":
            assert self._environment
            assert self._toolbox
            return LoopSeat(self._environment, self._toolbox, self.spec, self._limits, self._servers)
        assert self._hosts
        return HostSeat(self._hosts, await self._hosts.take_seat(), name, self.spec.tools, self._limits)

    async def leave(self, seat: Seat) -> None:
        """Close the state of one rollout, once, whatever becomes of the one who waits for it."""
        if isinstance(seat, NoSeat):
            return
        closing = asyncio.create_task(self._close(seat), name="closing")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def _close(self, seat: Seat) -> None:
        """A state that will not close must not cost a finished rollout its score."""
        try:
            await seat.close()
        except (RolloutFailed, SeatLost):
            return
        finally:
            self._places.leave()

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score a rollout, or raise the failure its verifier, or its judge, came to."""
        own = self._own(task)
        shown = rollout if own is task else msgspec.structs.replace(rollout, task=own)
        score = await self._verify(own, shown)
        return await self._appeal(self._court.judge(rollout), own, shown, score) if self._court else score

    def _own(self, task: Task) -> Task:
        """The task as the environment made it: in a blend, the book's ids say whose they are as well."""
        if not self._prefix:
            return task
        line = task.line()
        return Task.from_line(msgspec.structs.replace(line, id=line.id.removeprefix(self._prefix)))

    async def _verify(self, task: Task, rollout: Rollout) -> Score:
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
        async with self._turns:
            verdict = self._environment.verify(task, rollout)
            assert inspect.isawaitable(verdict)
            value = await guarded(verdict, self._limits.verify_s, "verify", "verifier_error", "verifier_timeout")
        return _scored(value, "verify")

    async def _appeal(self, judge: Judge, task: Task, rollout: Rollout, score: Score) -> Score:
        """The rule has spoken, in its process; the judge is asked from here, with a deadline of its own."""
        assert self._environment
        assert self._court
        hearing = self._environment.appeal(task, rollout, score, judge)
        return _scored(await guarded(hearing, self._court.seconds, "judge", "verifier_error", "judge_error"), "judge")


def _scored(verdict: JSON, where: str) -> Score:
    """What async code said as a score that a journal can hold."""
    try:
        score = as_score(verdict)
        msgspec.json.encode(score)
    except (InvalidReward, TypeError, ValueError, OverflowError) as error:
        raise RolloutFailed("invalid_reward", where, str(error)) from None
    return score


class Turnstile:
    """Lets so many through at a time, the first come first; None lets everyone."""

    def __init__(self, most: int | None) -> None:
        self._places = asyncio.Semaphore(most) if most else None

    async def enter(self) -> None:
        """Wait for a place."""
        if self._places:
            await self._places.acquire()

    def leave(self) -> None:
        """Give it back."""
        if self._places:
            self._places.release()

    async def __aenter__(self) -> None:
        await self.enter()

    async def __aexit__(self, *_: object) -> None:
        self.leave()
