"""A seat: the place of one rollout in an environment, and of its state, from `open` to `close`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.core.manifest import EnvironmentSpec, Limits
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.environments.broken import kind_of
from rollbook.environments.environment import Environment, State, as_answer
from rollbook.environments.frames import Call, Record
from rollbook.environments.guard import guarded
from rollbook.environments.hosts import Hosts
from rollbook.environments.offered import read_offers
from rollbook.environments.process import HostProcess
from rollbook.environments.toolbox import Toolbox
from rollbook.errors import ContextFull, LimitReached, RollbookError, RolloutFailed, Stopped
from rollbook.models.ask import Ask

if TYPE_CHECKING:
    from rollbook.environments.mcp.servers import Servers, Visit

ENTERING_S = 120.0
"""How long MCP servers may take to start for one rollout; it is no tool call."""


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


class Offer(NamedTuple):
    """A tool that is no method: its schema, and who carries it out."""

    schema: JSON
    use: Callable[[dict[str, JSON]], Awaitable[JSON]]


def names_of(tools: Sequence[JSON]) -> list[str]:
    """What tools are called."""
    return [tool["function"]["name"] for tool in tools]


class LoopSeat(Stopwatch):
    """State that lives on the worker's loop."""

    def __init__(
        self,
        environment: Environment,
        toolbox: Toolbox,
        spec: EnvironmentSpec,
        limits: Limits,
        servers: Servers | None = None,
    ) -> None:
        super().__init__()
        self._environment, self._toolbox, self._limits, self._servers = environment, toolbox, limits, servers
        self.tools: Sequence[JSON] = spec.tools
        self._offers = spec.offers
        self._offered: dict[str, Offer] = {}
        self._visit: Visit | None = None
        self._task: Task | None = None
        self._state: State = None

    async def _call(self, where: str, work: Awaitable[JSON] | JSON) -> JSON:
        if not inspect.isawaitable(work):
            return work
        with self.timed():
            return await guarded(work, self._limits.tool_s, where, "environment_error", "environment_error")

    async def open(self, task: Task) -> None:
        """Make the state."""
        if self._servers:
            entering = self._enter(self._servers)
            with self.timed():
                await guarded(entering, ENTERING_S, "mcp", "environment_error", "environment_error")
        opening = self._environment.open(task)
        if inspect.isawaitable(opening):
            await self._call("open", self._hold(task, opening))
        else:
            self._task, self._state = task, opening
        if self._offers:
            self._offered = await self._call("offers", self._all_offered(task))
            self.tools = [*self.tools, *(offer.schema for offer in self._offered.values())]

    async def _enter(self, servers: Servers) -> None:
        self._visit = await servers.enter()

    async def _hold(self, task: Task, opening: Awaitable[State]) -> None:
        """Hold it where it is made: whoever waits may be cancelled at the moment it is there."""
        self._state = await opening
        self._task = task

    async def _all_offered(self, task: Task) -> dict[str, Offer]:
        """What servers offer, and what the environment offers for this task."""
        own = {name: f"the @tool method {name}" for name in names_of(self.tools)}
        found: dict[str, Offer] = {}
        if self._servers and self._visit:
            found = {n: Offer(schema, partial(self._visit.use, n)) for n, schema in self._servers.tools.items()}
        own |= dict.fromkeys(found, "an MCP server")
        mine = read_offers(self._environment.offers(task), own)
        return found | {n: Offer(schema, partial(self._use, n)) for n, schema in mine.items()}

    def _use(self, name: str, arguments: dict[str, JSON]) -> Awaitable[JSON]:
        return self._environment.use(name, arguments, self._state)

    async def use(self, name: str, arguments: str) -> str:
        """Call a tool, its own or one that was offered for the task."""
        offer = self._offered.get(name)
        if offer is None:
            work = self._toolbox.use_async(name, arguments, self._state)
        else:
            work = self._toolbox.use_offered(offer.schema, arguments, offer.use)
        said: str = await self._call(f"tool {name}", work)
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

    async def play(self, rollout: Rollout, ask: Ask) -> None:
        """Let the environment carry out the whole rollout; what ends a conversation, or a run, is let through."""
        assert self._task
        work = self._environment.play(self._task, rollout, ask, self._state)
        try:
            with nullcontext() if self._environment.needs_model else self.timed():
                await work
        except (RolloutFailed, LimitReached, ContextFull, Stopped):
            raise
        except RollbookError as error:
            raise RolloutFailed(kind_of(error, "agent_error"), "play", str(error)) from error

    async def outcome(self) -> JSON:
        """What of the state belongs into the record, as it will be read from there."""
        found = await self._call("outcome", self._environment.outcome(self._state))
        try:
            return decode(encode(found))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RolloutFailed("environment_error", "outcome", f"the result does not fit JSON: {error}") from None

    async def close(self) -> None:
        """Let go of the state, if there is one, and of the servers."""
        task, self._task = self._task, None
        visit, self._visit = self._visit, None
        try:
            if task is not None:
                await self._call("close", self._environment.close(self._state))
        finally:
            if visit is not None:
                await self._call("close", visit.leave())


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
