"""A seat: the place of one rollout in an environment, and of its state, from `open` to `close`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.core.manifest import Limits
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.environments.environment import Environment, State, as_answer
from rollbook.environments.frames import Call, Record
from rollbook.environments.guard import guarded
from rollbook.environments.hosts import Hosts
from rollbook.environments.process import HostProcess
from rollbook.environments.toolbox import Toolbox
from rollbook.errors import RolloutFailed


class Seat(Protocol):
    """What a rollout may do with its environment. `tools` are their schemas; `seconds` what all of it took so far."""

    tools: Sequence[JSON]
    seconds: float

    async def open(self, task: Task) -> None:
        """Make the state."""

    async def use(self, name: str, arguments: str) -> str:
        """Call a tool with the arguments as the model wrote them; its mistakes come back as words for the model."""
        ...

    async def reply(self, rollout: Rollout) -> Message | None:
        """What the environment says to the model's last message; None ends the conversation."""

    async def outcome(self) -> JSON:
        """What of the state belongs into the record."""

    async def close(self) -> None:
        """Let go of the state."""


class Stopwatch:
    """Adds up the seconds that a seat spends in its environment."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what happens inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


class NoSeat(Stopwatch):
    """The place in an environment without tools, replies and state: there is nothing to do there."""

    tools: Sequence[JSON] = ()

    async def open(self, task: Task) -> None:
        """No state to make."""

    async def use(self, name: str, arguments: str) -> str:
        """No agent is shown a tool here."""
        raise RolloutFailed("agent_error", f"tool {name}", "the environment has no tools")

    async def reply(self, rollout: Rollout) -> Message | None:
        """Silence."""
        return None

    async def outcome(self) -> JSON:
        """Nothing."""
        return None

    async def close(self) -> None:
        """No state to let go of."""


class LoopSeat(Stopwatch):
    """State that lives on the worker's loop."""

    def __init__(self, environment: Environment, toolbox: Toolbox, tools: Sequence[JSON], limits: Limits) -> None:
        super().__init__()
        self._environment, self._toolbox, self._limits = environment, toolbox, limits
        self.tools = tools
        self._task: Task | None = None
        self._state: State = None

    async def _call(self, where: str, work: Awaitable[JSON] | JSON) -> JSON:
        if not inspect.isawaitable(work):
            return work
        with self.timed():
            return await guarded(work, self._limits.tool_s, where, "environment_error", "environment_error")

    async def open(self, task: Task) -> None:
        """Make the state."""
        self._state = await self._call("open", self._environment.open(task))
        self._task = task

    async def use(self, name: str, arguments: str) -> str:
        """Call a tool."""
        said: str = await self._call(f"tool {name}", self._toolbox.use_async(name, arguments, self._state))
        return said

    async def reply(self, rollout: Rollout) -> Message | None:
        """What the environment says back. It is shown a copy, as one in a process would be."""
        assert self._task
        shown = Record.of(rollout).rollout(self._task)
        said = await self._call("reply", self._environment.reply(self._task, shown, self._state))
        try:
            return as_answer(said)
        except TypeError as error:
            raise RolloutFailed("environment_error", "reply", str(error)) from None

    async def outcome(self) -> JSON:
        """What of the state belongs into the record, as it will be read from there."""
        found = await self._call("outcome", self._environment.outcome(self._state))
        try:
            return decode(encode(found))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RolloutFailed("environment_error", "outcome", f"the result does not fit JSON: {error}") from None

    async def close(self) -> None:
        """Let go of the state, if there is one."""
        if self._task is not None:
            self._task = None
            await self._call("close", self._environment.close(self._state))


class HostSeat(Stopwatch):
    """State that lives in one environment process."""

    def __init__(self, hosts: Hosts, process: HostProcess, name: str, tools: Sequence[JSON], limits: Limits) -> None:
        super().__init__()
        self._hosts, self._process, self._name, self._limits = hosts, process, name, limits
        self.tools = tools
        self._closed = False

    async def _call(self, call: Call) -> JSON:
        call.seat = self._name
        with self.timed():
            return (await self._hosts.seated_call(self._process, call, self._limits.tool_s)).value

    async def open(self, task: Task) -> None:
        """Make the state over there."""
        await self._call(Call("open", task.line()))

    async def use(self, name: str, arguments: str) -> str:
        """Call a tool over there."""
        return str(await self._call(Call("tool", tool=name, arguments=arguments)))

    async def reply(self, rollout: Rollout) -> Message | None:
        """What the environment says back."""
        said = await self._call(Call("reply", record=Record.of(rollout)))
        return None if said is None else msgspec.convert(said, Message)

    async def outcome(self) -> JSON:
        """What of the state belongs into the record."""
        return await self._call(Call("outcome"))

    async def close(self) -> None:
        """Let go of the state and the seat."""
        if self._closed:
            return
        self._closed = True
        self._process.seats -= 1
        if self._process.alive:
            await self._call(Call("close"))
