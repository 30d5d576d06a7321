"""The session of one rollout with its environment: its state, tools and replies, from `open` to `close`.

Async environment code runs on the worker's loop with a deadline that it cannot ignore; its exceptions become failures
of the rollout.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from rollbook.core import JSON, EnvironmentSpec, Limits, Message, Rollout, Task, decode, encode
from rollbook.environments.calls import EnvironmentCall, RolloutRecord, describe_exception, failure_kind
from rollbook.environments.environment import Environment, EnvironmentState, as_message
from rollbook.environments.pool import EnvironmentProcess, EnvironmentProcessPool
from rollbook.environments.tools import Toolbox, read_offered_tools
from rollbook.errors import ContextFull, LimitReached, RollbookError, RolloutFailed, Stopped
from rollbook.models import AskModel
from rollbook.processes import CANCEL_GRACE_S, ENVIRONMENT_CODE_TASK

if TYPE_CHECKING:
    from rollbook.environments.mcp import McpConnection, McpServers

MCP_START_S = 120.0
"""How long MCP servers may take to start for one rollout; the limit of tool calls does not apply."""


class EnvironmentSession(Protocol):
    """The interface between a rollout and its environment. `tools` are schemas; `seconds` is the time spent so far."""

    tools: Sequence[JSON]
    seconds: float

    async def open(self, task: Task) -> None:
        """Make the state."""
        return

    async def use(self, name: str, arguments: str) -> str:
        """Call a tool with the arguments as the model wrote them; mistakes of the model are returned as text for it."""
        ...

    async def reply(self, rollout: Rollout) -> Message | None:
        """Return the reply to the model's last message; None ends the conversation."""
        return None

    async def outcome(self) -> JSON:
        """Return the part of the state that belongs in the record."""
        return None

    async def close(self) -> None:
        """Release the state."""
        return


class Stopwatch:
    """Adds up the seconds that a session spends in its environment."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add the time that the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


class StatelessSession(Stopwatch, EnvironmentSession):
    """The session of an environment without tools, replies and state: it does nothing."""

    tools: Sequence[JSON] = ()

    async def use(self, name: str, arguments: str) -> str:
        """Fail: there are no tools, so no agent should call one."""
        raise RolloutFailed("agent_error", f"tool {name}", "the environment has no tools")


class OfferedTool(NamedTuple):
    """A tool that is not a method: its schema, and the function that executes it."""

    schema: JSON
    use: Callable[[dict[str, JSON]], Awaitable[JSON]]


def tool_names(tools: Sequence[JSON]) -> list[str]:
    """Return the names of tools."""
    return [tool["function"]["name"] for tool in tools]


class LoopSession(Stopwatch):
    """State that lives on the worker's loop. Where a method says nothing, the protocol describes it."""

    def __init__(
        self,
        environment: Environment,
        toolbox: Toolbox,
        spec: EnvironmentSpec,
        limits: Limits,
        servers: McpServers | None = None,
    ) -> None:
        super().__init__()
        self._environment, self._toolbox, self._limits, self._mcp_servers = environment, toolbox, limits, servers
        self.tools: Sequence[JSON] = spec.tools
        self._offers = spec.offers
        self._offered: dict[str, OfferedTool] = {}
        self._mcp_connection: McpConnection | None = None
        self._task: Task | None = None
        self._state: EnvironmentState = None

    async def _call(self, where: str, work: Awaitable[JSON] | JSON) -> JSON:
        if not inspect.isawaitable(work):
            return work
        with self.measure():
            return await await_with_deadline(work, self._limits.tool_s, where, "environment_error", "environment_error")

    async def open(self, task: Task) -> None:
        if self._mcp_servers:
            connecting = self._connect_mcp(self._mcp_servers)
            with self.measure():
                await await_with_deadline(connecting, MCP_START_S, "mcp", "environment_error", "environment_error")
        opening = self._environment.open(task)
        if inspect.isawaitable(opening):
            await self._call("open", self._store_state(task, opening))
        else:
            self._task, self._state = task, opening
        if self._offers:
            self._offered = await self._call("offers", self._collect_offers(task))
            self.tools = [*self.tools, *(offer.schema for offer in self._offered.values())]

    async def _connect_mcp(self, servers: McpServers) -> None:
        self._mcp_connection = await servers.connect()

    async def _store_state(self, task: Task, opening: Awaitable[EnvironmentState]) -> None:
        """Store the state in the task that makes it: the waiting task may be cancelled at that very moment."""
        self._state = await opening
        self._task = task

    async def _collect_offers(self, task: Task) -> dict[str, OfferedTool]:
        """Return the tools of MCP servers, and those that the environment offers for this task."""
        own = {name: f"the @tool method {name}" for name in tool_names(self.tools)}
        offered: dict[str, OfferedTool] = {}
        if self._mcp_servers and self._mcp_connection:
            offered = {
                n: OfferedTool(schema, partial(self._mcp_connection.use, n))
                for n, schema in self._mcp_servers.tools.items()
            }
        own |= dict.fromkeys(offered, "an MCP server")
        schemas = read_offered_tools(self._environment.offers(task), own)
        return offered | {n: OfferedTool(schema, partial(self._use_offered, n)) for n, schema in schemas.items()}

    def _use_offered(self, name: str, arguments: dict[str, JSON]) -> Awaitable[JSON]:
        return self._environment.use(name, arguments, self._state)

    async def use(self, name: str, arguments: str) -> str:
        """Call a tool, its own or one that was offered for the task."""
        offer = self._offered.get(name)
        if offer is None:
            work = self._toolbox.use_async(name, arguments, self._state)
        else:
            work = self._toolbox.use_offered(offer.schema, arguments, offer.use)
        result: str = await self._call(f"tool {name}", work)
        return result

    async def reply(self, rollout: Rollout) -> Message | None:
        """Return the environment's reply. It gets a copy of the rollout, as in an environment process."""
        assert self._task
        copy = RolloutRecord.from_rollout(rollout).to_rollout(self._task)
        reply = await self._call("reply", self._environment.reply(self._task, copy, self._state))
        try:
            return as_message(reply)
        except TypeError as error:
            raise RolloutFailed("environment_error", "reply", str(error)) from None

    async def play(self, rollout: Rollout, ask: AskModel) -> None:
        """Let the environment run the whole rollout; exceptions that end a conversation or a run pass through."""
        assert self._task
        work = self._environment.play(self._task, rollout, ask, self._state)
        try:
            with nullcontext() if self._environment.needs_model else self.measure():
                await work
        except (RolloutFailed, LimitReached, ContextFull, Stopped):
            raise
        except RollbookError as error:
            raise RolloutFailed(failure_kind(error, "agent_error"), "play", str(error)) from error

    async def outcome(self) -> JSON:
        """Return the part of the state that belongs in the record, as it will be read from there."""
        value = await self._call("outcome", self._environment.outcome(self._state))
        try:
            return decode(encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RolloutFailed("environment_error", "outcome", f"the result does not fit JSON: {error}") from None

    async def close(self) -> None:
        """Release the state, if there is one, and the servers."""
        task, self._task = self._task, None
        connection, self._mcp_connection = self._mcp_connection, None
        try:
            if task is not None:
                await self._call("close", self._environment.close(self._state))
        finally:
            if connection is not None:
                await self._call("close", connection.close())


class ProcessSession(Stopwatch):
    """State that lives in one environment process. The methods are described in the protocol."""

    def __init__(
        self,
        pool: EnvironmentProcessPool,
        process: EnvironmentProcess,
        name: str,
        tools: Sequence[JSON],
        limits: Limits,
    ) -> None:
        super().__init__()
        self._pool, self._process, self._name, self._limits = pool, process, name, limits
        self.tools = tools
        self._closed = False

    async def _call(self, call: EnvironmentCall) -> JSON:
        call.session = self._name
        with self.measure():
            return (await self._pool.session_call(self._process, call, self._limits.tool_s)).value

    async def open(self, task: Task) -> None:
        await self._call(EnvironmentCall("open", task.line()))

    async def use(self, name: str, arguments: str) -> str:
        return str(await self._call(EnvironmentCall("tool", tool=name, arguments=arguments)))

    async def reply(self, rollout: Rollout) -> Message | None:
        reply = await self._call(EnvironmentCall("reply", record=RolloutRecord.from_rollout(rollout)))
        return None if reply is None else msgspec.convert(reply, Message)

    async def outcome(self) -> JSON:
        return await self._call(EnvironmentCall("outcome"))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._process.sessions -= 1
        if self._process.alive:
            await self._call(EnvironmentCall("close"))


async def await_with_deadline(
    work: Awaitable[JSON], timeout_s: float, where: str, error_kind: str, timeout_kind: str
) -> JSON:
    """Await environment code with a deadline that it cannot ignore: code that resists cancellation is abandoned."""
    task = asyncio.create_task(await_contained(work, where, error_kind), name=ENVIRONMENT_CODE_TASK)
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if done:
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
    raise RolloutFailed(timeout_kind, where, f"{where} took longer than {timeout_s:g} s")


async def await_contained(work: Awaitable[JSON], where: str, error_kind: str) -> JSON:
    """Await environment code; its exceptions, whatever they are, become failures."""
    try:
        return await work
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        raise RolloutFailed(error_kind, where, f"{where} awaited something that was cancelled") from None
    except (Exception, SystemExit) as error:
        message = describe_exception(error, location=False)
        raise RolloutFailed(failure_kind(error, error_kind), where, message) from error


def is_being_cancelled() -> bool:
    """Whether the current task is being cancelled, as opposed to something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
