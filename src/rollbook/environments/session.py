"""The session of one rollout with its environment: its state, tools and replies, from `open` to `close`.

Async environment code runs on the worker's loop with a deadline that it cannot ignore; its exceptions become failures
of the rollout.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from rollbook.core import JSON, ContentPart, EnvironmentSpec, Limits, Message, Rollout, Task, decode, encode
from rollbook.environments.calls import EnvironmentCall, RolloutRecord, describe_exception, failure_kind
from rollbook.environments.environment import (
    Environment,
    EnvironmentState,
    as_message,
    choose_container,
    run_in_shell,
    takes_container,
)
from rollbook.environments.pool import EnvironmentProcess, EnvironmentProcessPool
from rollbook.environments.roles.caller import RoleCaller
from rollbook.environments.roles.role_model import use_role_asker
from rollbook.environments.tools import Toolbox, ToolOutput, read_offered_tools
from rollbook.errors import (
    ClientKilled,
    ContainerError,
    ContextFull,
    Drained,
    LimitReached,
    RollbookError,
    RolloutFailed,
    Stopped,
)
from rollbook.models import AskModel
from rollbook.processes import CANCEL_GRACE_S, ENVIRONMENT_CODE_TASK, is_being_cancelled

if TYPE_CHECKING:
    from rollbook.containers import CommandResult, Container, ContainerHandle, ContainerHost
    from rollbook.environments.mcp import McpConnection, McpServers

MCP_START_S = 120.0
"""How long MCP servers may take to start for one rollout; the limit of tool calls does not apply."""

CONTAINER_GRACE_S = 120.0
"""How much longer a tool call with a container may take than two commands inside, each of which is ended at its limit.

An agent that stops the processes in its container makes all of it last as long as it may: a new shell (20 s, and 10 s
until its start is given up) and two tries to end a command (30 s each, and 5 s until it has ended)."""


MIN_WAIT_S = 0.05
"""How often a deadline that stands still is looked at again."""


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


class ContainerSession(Stopwatch):
    """The container of a rollout, if it has one: started, used by agents, and removed."""

    def __init__(self, limits: Limits, containers: ContainerHost | None, name: str) -> None:
        super().__init__()
        self._limits, self._containers, self._name = limits, containers, name
        self.container: ContainerHandle | None = None

    async def start_container(self, wanted: Container | None) -> None:
        """Start the container of a rollout, with the deadlines of its own."""
        if self._containers is None or wanted is None:
            return
        with self.measure():
            starting = self._keep_container(self._containers.start(wanted, self._name))
            # Waiting for another's build and building each have the deadline of a build.
            allowed = 2 * wanted.build_timeout_s + 2 * wanted.start_timeout_s
            await await_with_deadline(starting, allowed, "container", "container_error", "container_error")

    async def _keep_container(self, starting: Awaitable[ContainerHandle]) -> None:
        self.container = await starting
        self.container.command_s = self._limits.tool_s

    async def remove_container(self) -> None:
        """Remove the container."""
        container, self.container = self.container, None
        if container is not None and self._containers is not None:
            await self._containers.remove(container)

    @property
    def open_s(self) -> float | None:
        """The deadline of `open`, where there is a container."""
        return self.container.container.open_timeout_s if self.container else None

    @property
    def tool_s(self) -> float | None:
        """The deadline of a tool call, where there is a container: the command inside is ended at the limit."""
        return CONTAINER_GRACE_S + 2 * self._limits.tool_s if self.container else None

    @property
    def verify_s(self) -> float | None:
        """The deadline of `reply`, `outcome` and `verify`, where there is a container."""
        return self.container.container.verify_timeout_s if self.container else None

    async def solve(self) -> None:
        """Let the environment carry out the solution of its task."""
        raise NotImplementedError

    async def reply(self, rollout: Rollout) -> Message | None:
        """Return the environment's reply."""
        raise NotImplementedError

    async def run_program(self, command: str, env: Mapping[str, str]) -> CommandResult:
        """Run a program in the container to its end."""
        assert self.container
        async with blame_agent(self.container):
            return await run_in_shell(self.container, command, env)


class LoopSession(ContainerSession):
    """State that lives on the worker's loop. Where a method says nothing, the protocol describes it."""

    def __init__(
        self,
        environment: Environment,
        toolbox: Toolbox,
        spec: EnvironmentSpec,
        limits: Limits,
        servers: McpServers | None = None,
        containers: ContainerHost | None = None,
        name: str = "",
        roles: RoleCaller | None = None,
    ) -> None:
        super().__init__(limits, containers, name)
        self._environment, self._toolbox, self._mcp_servers = environment, toolbox, servers
        self._roles = roles
        self.tools: Sequence[JSON] = spec.tools
        self._offers = spec.offers
        self._offered: dict[str, OfferedTool] = {}
        self._shown: list[ContentPart] = []
        self._mcp_connection: McpConnection | None = None
        self._task: Task | None = None
        self._state: EnvironmentState = None

    async def _call(self, where: str, work: Awaitable[JSON] | JSON, timeout_s: float | None = None) -> JSON:
        if not inspect.isawaitable(work):
            return work
        allowed = self._limits.tool_s if timeout_s is None else timeout_s
        with self.measure():
            return await await_with_deadline(
                work, allowed, where, "environment_error", "environment_error", self._roles
            )

    async def open(self, task: Task) -> None:
        if self._mcp_servers:
            connecting = self._connect_mcp(self._mcp_servers)
            with self.measure():
                await await_with_deadline(connecting, MCP_START_S, "mcp", "environment_error", "environment_error")
        environment = self._environment
        # In a thread: reading and hashing the files of a task takes long, and the loop serves every rollout.
        choosing = asyncio.to_thread(choose_container, environment, task)
        await self.start_container(await await_contained(choosing, "container_for", "environment_error"))
        injected = {"container": self.container} if takes_container(environment.open) else {}
        opening = environment.open(task, **injected)
        if inspect.isawaitable(opening):
            await self._call("open", self._store_state(task, opening), self.open_s)
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

    async def _use_and_show(self, offer: OfferedTool, arguments: dict[str, JSON]) -> JSON:
        """Call a tool that was offered, and keep the images and sounds of its result."""
        value = await offer.use(arguments)
        if not isinstance(value, ToolOutput):
            return value
        self._shown += value.shown
        return value.text

    def take_shown(self) -> list[ContentPart]:
        """Return the images and sounds of the calls since the last time."""
        shown, self._shown = self._shown, []
        return shown

    async def use(self, name: str, arguments: str) -> str:
        """Call a tool, its own or one that was offered for the task."""
        offer = self._offered.get(name)
        if offer is None:
            work = self._toolbox.use_async(name, arguments, self._state, self.container)
        else:
            work = self._toolbox.use_offered(offer.schema, arguments, partial(self._use_and_show, offer))
        async with blame_agent(self.container):
            result: str = await self._call(f"tool {name}", work, self.tool_s)
        return result

    async def reply(self, rollout: Rollout) -> Message | None:
        """Return the environment's reply. It gets a copy of the rollout, as in an environment process."""
        assert self._task
        await require_disk_space(self.container)
        copy = _make_record(rollout, self._roles).to_rollout(self._task)
        reply = await self._call("reply", self._environment.reply(self._task, copy, self._state), self.verify_s)
        try:
            return as_message(reply)
        except TypeError as error:
            raise RolloutFailed("environment_error", "reply", str(error)) from None

    async def play(self, rollout: Rollout, ask: AskModel) -> None:
        """Let the environment run the whole rollout; exceptions that end a conversation or a run pass through."""
        assert self._task
        work = self._environment.play(self._task, rollout, ask, self._state)
        try:
            with nullcontext() if self._environment.needs_model else self.measure(), use_role_asker(self._roles):
                await work
            if self._roles is not None:
                self._roles.check_failure("play")
        except (RolloutFailed, LimitReached, ContextFull, Stopped):
            raise
        except RollbookError as error:
            raise RolloutFailed(failure_kind(error, "agent_error"), "play", str(error)) from error

    async def run_program(self, command: str, env: Mapping[str, str]) -> CommandResult:
        """Run a program in the container, as the environment does it."""
        assert self._task
        assert self.container
        async with blame_agent(self.container):
            return await self._environment.run_program(self._task, self._state, self.container, command, env)

    async def solve(self) -> None:
        """Let the environment carry out the solution of its task."""
        assert self._task
        async with blame_agent(self.container):
            solve: Callable[..., Awaitable[None] | None] = self._environment.solve
            injected = {"container": self.container} if takes_container(solve) else {}
            solving = solve(self._task, self._state, **injected)
            assert inspect.isawaitable(solving)
            with self.measure():
                await solving

    async def outcome(self) -> JSON:
        """Return the part of the state that belongs in the record, as it will be read from there."""
        await require_disk_space(self.container)
        value = await self._call("outcome", self._environment.outcome(self._state), self.verify_s)
        try:
            return decode(encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RolloutFailed(
                "environment_error", "outcome", f"the result cannot be stored as JSON: {error}"
            ) from None

    async def close(self) -> None:
        """Release the state, if there is one, and the servers."""
        task, self._task = self._task, None
        connection, self._mcp_connection = self._mcp_connection, None
        try:
            if task is not None:
                await self._call("close", self._environment.close(self._state))
        finally:
            await self.remove_container()
            if connection is not None:
                await self._call("close", connection.close())


class ProcessSession(ContainerSession):
    """State that lives in one environment process. The methods are described in the protocol."""

    def __init__(
        self,
        pool: EnvironmentProcessPool,
        process: EnvironmentProcess,
        name: str,
        tools: Sequence[JSON],
        limits: Limits,
        containers: ContainerHost | None = None,
        roles: RoleCaller | None = None,
    ) -> None:
        super().__init__(limits, containers, name)
        self._pool, self._process, self._roles = pool, process, roles
        self.tools = tools
        self._closed = False

    async def _call(
        self, call: EnvironmentCall, timeout_s: float | None = None, roles: RoleCaller | None = None
    ) -> JSON:
        call.session = self._name
        allowed = self._limits.tool_s if timeout_s is None else timeout_s
        with self.measure():
            send = self._pool.session_call(self._process, call, allowed, roles or self._roles, self.container)
            return (await send).value

    async def open(self, task: Task) -> None:
        if self._containers is not None:
            from rollbook.containers import Container

            wanted = await self._call(EnvironmentCall("container_for", task.line()))
            await self.start_container(msgspec.convert(wanted, Container | None))
        await self._call(EnvironmentCall("open", task.line()), self.open_s)

    async def use(self, name: str, arguments: str) -> str:
        async with blame_agent(self.container):
            return str(await self._call(EnvironmentCall("tool", tool=name, arguments=arguments), self.tool_s))

    async def reply(self, rollout: Rollout) -> Message | None:
        await require_disk_space(self.container)
        record = _make_record(rollout, self._roles)
        reply = await self._call(EnvironmentCall("reply", record=record), self.verify_s)
        return None if reply is None else msgspec.convert(reply, Message)

    async def outcome(self) -> JSON:
        await require_disk_space(self.container)
        return await self._call(EnvironmentCall("outcome"), self.verify_s)

    async def solve(self) -> None:
        async with blame_agent(self.container):
            await self._call(EnvironmentCall("solve"), self.verify_s)

    async def verify(self, task: Task, rollout: Rollout, roles: RoleCaller) -> JSON:
        """Verify with the container of the rollout, in the process that has its state."""
        call = EnvironmentCall("verify", task.line(), RolloutRecord.from_rollout(rollout))
        return await self._call(call, self.verify_s, roles)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._process.alive:
                await self._call(EnvironmentCall("close"))
        finally:
            self._process.sessions -= 1
            await self.remove_container()


def _make_record(rollout: Rollout, roles: RoleCaller | None) -> RolloutRecord:
    """Return the rollout for `reply`, with the calls of its session: some callers do not keep them in the rollout."""
    record = RolloutRecord.from_rollout(rollout)
    return msgspec.structs.replace(record, role_calls=roles.recorded) if roles else record


@asynccontextmanager
async def blame_agent(container: ContainerHandle | None) -> AsyncIterator[None]:
    """Turn the end of a container whose agent exceeded its storage or memory into a limit, after which it is scored."""
    try:
        yield
    except (ContainerError, RolloutFailed) as error:
        if isinstance(error, ClientKilled):
            raise
        failed = isinstance(error, ContainerError) or error.kind == "container_error"
        if failed and container is not None and (limit := await container.find_limit()):
            raise LimitReached(limit) from None
        raise


async def require_disk_space(container: ContainerHandle | None) -> None:
    """Fail the rollout if the disk of this machine is full, before anything is scored."""
    if container is None or container.host is None:
        return
    try:
        await container.host.require_disk_space()
    except ContainerError as error:
        raise RolloutFailed("container_error", "container", str(error)) from None


async def await_with_deadline(
    work: Awaitable[JSON],
    timeout_s: float,
    where: str,
    error_kind: str,
    timeout_kind: str,
    roles: RoleCaller | None = None,
) -> JSON:
    """Await environment code with a deadline that it cannot ignore: code that resists cancellation is abandoned.

    It may ask models through `roles`; the deadline does not count the time that those take.
    """
    with use_role_asker(roles):
        context = contextvars.copy_context()
    code = await_contained(work, where, error_kind)
    task = asyncio.create_task(code, name=ENVIRONMENT_CODE_TASK, context=context)
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    try:
        if await _wait_until_done(task, timeout_s, roles):
            if roles is not None:
                roles.check_failure(where)
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
    raise RolloutFailed(timeout_kind, where, f"{where} took longer than {timeout_s:g} s")


async def _wait_until_done(task: asyncio.Task[JSON], timeout_s: float, roles: RoleCaller | None) -> bool:
    """Return whether a task has ended within its time, which stands still while it asks the model of a role."""
    began, asked_s = time.perf_counter(), roles.asked_s if roles else 0.0
    left = timeout_s
    while left > 0:
        if (await asyncio.wait({task}, timeout=max(left, MIN_WAIT_S)))[0]:
            return True
        if roles is None:
            return False
        left = timeout_s - (time.perf_counter() - began) + (roles.asked_s - asked_s)
    return False


async def await_contained(work: Awaitable[JSON], where: str, error_kind: str) -> JSON:
    """Await environment code; its exceptions, whatever they are, become failures."""
    try:
        return await work
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        raise RolloutFailed(error_kind, where, f"{where} awaited something that was cancelled") from None
    except (LimitReached, Drained):
        raise  # the policy's own limit ends the conversation, and what exists so far is scored; a drain gives it up
    except (Exception, SystemExit) as error:
        message = describe_exception(error, location=False)
        raise RolloutFailed(failure_kind(error, error_kind), where, message) from error
