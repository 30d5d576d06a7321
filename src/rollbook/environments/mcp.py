"""MCP servers of an environment in one worker: start them, call their tools, stop them.

A server is a command (started under a supervisor process, JSON lines over its standard input and output) or a URL.
Needs the official package: `pip install 'rollbook[mcp]'`; `McpServer` in `environment`, the declaration, does not.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    AudioContent,
    CallToolResult,
    ContentBlock,
    ImageContent,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    TextContent,
    jsonrpc_message_adapter,
)

from rollbook.book import write_new
from rollbook.core import AUDIO_FORMATS, JSON, ContentPart, decode, decode_part, encode, encode_pretty
from rollbook.environments.environment import McpServer
from rollbook.environments.tools import ToolMisuse, ToolOutput, make_tool_schema, read_offered_tools
from rollbook.errors import RolloutFailed, UsageError
from rollbook.processes import Child, module_argv

COMMON_VARIABLES = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
MAX_MESSAGE_BYTES = 16 << 20
"""The longest message of a server; code in a container may stand in for the server, and memory takes many times more.

The package's own reader of lines takes quadratic time and has no limit.
"""

EXIT_GRACE_S = 5.0

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class Sender(Protocol):
    """The end of a transport that takes our messages."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send one."""


Transport = AbstractAsyncContextManager[tuple[AsyncIterable[SessionMessage | Exception], Sender]]


class McpProcess:
    """One process of a server; the future `ended` resolves at the end of its output."""

    def __init__(self, server: McpServer, folder: Path | None, log: Path | None) -> None:
        self._server, self._folder, self._log = server, folder, log
        self._child: Child | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def last_error_line(self) -> str:
        """The last line that it wrote to standard error, if any."""
        line = self._child.last_log_line() if self._child else ""
        return line[-500:]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Start it, and end it when the context ends."""
        ours, theirs = socket.socketpair()
        with theirs:
            names = ",".join((*COMMON_VARIABLES, *self._server.env))
            argv = module_argv("rollbook.processes.supervisor", str(theirs.fileno()), names, *self._server.command)
            self._child = child = Child(argv, cwd=self._folder, pass_fds=[theirs.fileno()], log=self._log)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_MESSAGE_BYTES)
            try:
                async with self._streams(reader, writer) as streams:
                    yield streams
            finally:
                writer.transport.abort()  # the supervisor notices, and gives the server time to end
            await child.wait(EXIT_GRACE_S)
        finally:
            child.kill_now()

    @asynccontextmanager
    async def _streams(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[Streams]:
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_messages, reader, incoming)
            tasks.start_soon(_write_messages, writer, outgoing)
            try:
                yield received, sent
            finally:
                tasks.cancel_scope.cancel()
                for stream in (incoming, received, sent, outgoing):
                    stream.close()

    async def _read_messages(self, reader: asyncio.StreamReader, incoming: Incoming) -> None:
        """Pass on every message until the server ends; a message above the limit counts as the end."""
        try:
            with suppress(ConnectionError, ValueError, anyio.ClosedResourceError, anyio.BrokenResourceError), incoming:
                while line := await reader.readline():
                    await incoming.send(_parse_message(line))
        finally:
            if not self.ended.done():
                self.ended.set_result(None)


def _parse_message(line: bytes) -> SessionMessage | Exception:
    """Parse a line; one that is not a message (a server that prints) is passed on as an error."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _write_messages(writer: asyncio.StreamWriter, outgoing: Outgoing) -> None:
    """Write every message until the server stops reading; then no sender waits any longer."""
    with suppress(ConnectionError, anyio.ClosedResourceError), outgoing:
        async for message in outgoing:
            writer.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await writer.drain()


MAX_SERVER_REQUESTS = 64
"""Requests of a server (pings) that wait for our reply; the package starts a task for each, however many come."""


@asynccontextmanager
async def pace_requests(transport: Transport) -> AsyncIterator[Streams]:
    """Pass on the messages of a transport, but no more requests of the server while too many wait for our reply."""
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    free = asyncio.Semaphore(MAX_SERVER_REQUESTS)
    async with transport as (theirs, ours), anyio.create_task_group() as tasks:
        tasks.start_soon(_pass_on_received, theirs, incoming, free)
        tasks.start_soon(_pass_on_sent, outgoing, ours, free)
        try:
            yield received, sent
        finally:
            tasks.cancel_scope.cancel()
            for stream in (incoming, received, sent, outgoing):
                stream.close()


async def _pass_on_received(
    source: AsyncIterable[SessionMessage | Exception], target: Incoming, free: asyncio.Semaphore
) -> None:
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError), target:
        async for message in source:
            if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest):
                await free.acquire()
            await target.send(message)


async def _pass_on_sent(source: Outgoing, target: Sender, free: asyncio.Semaphore) -> None:
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError), source:
        async for message in source:
            await target.send(message)
            if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                free.release()


T = TypeVar("T")

STARTING_S = 60.0
CLOSING_S = 8.0
CANCELLING_S = 1.0
CONNECT_S = 10.0
LAST_ANSWER_S = 0.5
MAX_PAGES = 100
HTTP_LIMITS: dict[str, Any] = {"max_sse_event_size": MAX_MESSAGE_BYTES}
if HTTP_LIMITS.keys() - inspect.signature(streamable_http_client).parameters:
    HTTP_LIMITS = {}  # since 2.3 the package limits HTTP messages, to a megabyte


class OversizedBody(httpx2.StreamError):
    """A body that is not read to its end; the package reports it as the error of one request."""


class LimitedStream(httpx2.AsyncByteStream):
    """The body of a response, up to MAX_MESSAGE_BYTES; a compressed one could grow to any size, so it is refused."""

    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        self._encoding = response.headers.get("content-encoding", "identity").lower()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._encoding != "identity":
            raise OversizedBody(f"the body is compressed ({self._encoding[:80]}), which was not asked for")
        size = 0
        async for data in self._stream:
            size += len(data)
            if size > MAX_MESSAGE_BYTES:
                raise OversizedBody(f"the body exceeds {MAX_MESSAGE_BYTES} bytes")
            yield data

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()


async def limit_body(response: httpx2.Response) -> None:
    """Limit the body of a response: the package reads it as a whole, but for events, whose size it limits itself."""
    is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    is_compressed = "content-encoding" in response.headers
    if is_compressed or not (is_events and response.is_success and response.request.method in ("GET", "POST")):
        response.stream = LimitedStream(response)


class McpSession:
    """A connection owned by its own task: the task that opens one must also close it, and rollouts come and go.

    `broken` means that a call was late or failed: current users may continue, but no new ones are admitted.
    """

    def __init__(self, server: McpServer, folder: Path | None, log: Path | None) -> None:
        self.server = server
        self.users = 0
        self.broken = False
        self._process = McpProcess(server, folder, log) if server.command else None
        self._leaving = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect to the server; RolloutFailed says why it failed."""
        self._task = task = asyncio.create_task(self._run_client(), name=self.server.display_name)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await self._wait_for(self._ready, STARTING_S)
        except BaseException:
            await self.close()
            raise
        if not self._ready.done():
            ended = task.done() or (self._process and self._process.ended.done())
            await self.close()
            raise self._make_failure(self._task_error() if ended else f"was not ready within {STARTING_S:g} s")

    async def _wait_for(self, wanted: asyncio.Future[Any], timeout_s: float | None = None) -> None:
        """Wait for a future or the end of the server; after the end, wait a moment longer for what it sent before."""
        assert self._task
        ends: list[asyncio.Future[Any]] = [self._task, *([self._process.ended] if self._process else [])]
        await asyncio.wait([wanted, *ends], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if any(end.done() for end in ends):
            await asyncio.wait([wanted], timeout=LAST_ANSWER_S)

    def _task_error(self) -> BaseException | None:
        task = self._task
        return task.exception() if task and task.done() and not task.cancelled() else None

    async def _run_client(self) -> None:
        async with self._client() as client:
            self._ready.set_result(client)
            await self._leaving.wait()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        if self._process:
            async with Client(pace_requests(self._process.open()), cache=None) as client:
                yield client
            return
        token = os.environ.get(self.server.token_env, "")
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
        timeout = httpx2.Timeout(None, connect=CONNECT_S)
        # A proxy cannot reach our own ports.
        proxied = urlsplit(self.server.url).hostname not in ("localhost", "127.0.0.1")
        hooks = {"response": [limit_body]}
        async with httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=proxied, event_hooks=hooks) as http:
            transport = streamable_http_client(self.server.url, http_client=http, **HTTP_LIMITS)
            async with Client(pace_requests(transport), cache=None) as client:
                yield client

    async def close(self) -> None:
        """Disconnect from the server; a process of ours is ended, by force if needed."""
        self.broken = True
        self._leaving.set()
        if self._task is None:
            return
        _, late = await asyncio.wait([self._task], timeout=CLOSING_S if self._ready.done() else 0)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSING_S)

    async def list_tools(self) -> list[JSON]:
        """Return all its tools as chat completion schemas, sorted by name: some servers list them in no fixed order."""
        tools: list[JSON] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._await_answer(self._ready.result().list_tools(cursor=cursor))
            tools += [make_tool_schema(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return sorted(tools, key=lambda tool: str(tool["function"]["name"]))
        raise self._make_failure(f"lists its tools on more than {MAX_PAGES} pages")

    async def call(self, name: str, arguments: dict[str, JSON]) -> str | ToolOutput:
        """Call a tool; ToolMisuse if the server reports that the arguments are wrong."""
        return render_result(await self._await_answer(self._ready.result().call_tool(name, arguments)))

    async def _await_answer(self, request: Coroutine[Any, Any, T]) -> T:
        """Wait for the server's answer, or for its end."""
        answer = asyncio.create_task(request, name="asking an MCP server")
        try:
            await self._wait_for(answer)
            if answer.done():
                return answer.result()
            raise self._make_failure(self._task_error())
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolMisuse(error.message) from None
            gone = error.code == CONNECTION_CLOSED
            raise self._make_failure(error if gone else f"answers with an error: {error.message}") from None
        except (ValueError, RuntimeError, OSError) as error:
            raise self._make_failure(f"sends an invalid answer: {innermost_reason(error)}") from None
        finally:
            if not answer.done():
                self.broken = True
                answer.cancel()
                await asyncio.wait({answer}, timeout=CANCELLING_S)

    def _make_failure(self, why: BaseException | str | None) -> RolloutFailed:
        self.broken = True
        words = [
            self.server.display_name,
            why if isinstance(why, str) else f"is not reachable: {innermost_reason(why)}",
        ]
        last = self._process.last_error_line() if self._process else ""
        return RolloutFailed("environment_error", "mcp", " ".join(words) + (f" ({last})" if last else ""))


def innermost_reason(error: BaseException | None) -> str:
    """Return the innermost message, in one line: task groups wrap errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = " ".join(str(error).split()) if error else ""
    return words or (type(error).__name__ if error else "it closed the connection")


def render_result(result: CallToolResult) -> str | ToolOutput:
    """Return a result for the model: its texts, else its JSON; its images and sounds; other content only by type."""
    shown: list[ContentPart] = []
    parts = [_render_content(part, shown) for part in result.content]
    text = "\n".join(parts) if parts else encode(result.structured_content).decode()
    text = f"Error: {text}" if result.is_error else text
    return ToolOutput(text, shown) if shown else text


def _render_content(content: ContentBlock, shown: list[ContentPart]) -> str:
    """Return the text that stands for one part of a result; an image or a sound is added to `shown`."""
    if isinstance(content, TextContent):
        return content.text
    if not isinstance(content, ImageContent | AudioContent):
        return f"[{content.type}]"
    source = f"data:{content.mime_type};base64,{content.data}"
    part: ContentPart = {"type": "image_url", "image_url": {"url": source}}
    try:
        media = decode_part(part, any_type=False)  # a sound is read in the same way, and then has a part of its own
    except UsageError as error:
        return f"[{content.type}: {error}]"
    if media is None or (media.suffix in AUDIO_FORMATS) != isinstance(content, AudioContent):
        return f"[{content.type}]"
    if isinstance(content, AudioContent):
        part = {"type": "input_audio", "input_audio": {"data": content.data, "format": media.suffix}}
    shown.append(part)
    return f"[{content.type} {len(shown)}]"


LISTING_S = 60.0


class McpServerSessions:
    """The sessions with one server: a shared one, or one per rollout."""

    def __init__(self, server: McpServer, folder: Path | None, log: Path | None) -> None:
        self.server, self._folder, self._log = server, folder, log
        self.tools: list[JSON] = []
        self._shared_session: McpSession | None = None
        self._open_lock = asyncio.Lock()
        self._open_sessions: set[McpSession] = set()

    async def start(self) -> None:
        """Connect to it and list its tools."""
        for name in (*self.server.env, *filter(None, [self.server.token_env])):
            if name not in os.environ:
                raise UsageError(f"{self.server.display_name}: the environment variable {name} is not set")
        session = await self._get_session()
        try:
            async with asyncio.timeout(LISTING_S):
                self.tools = await session.list_tools()
        except TimeoutError:
            raise UsageError(f"{self.server.display_name} did not list its tools within {LISTING_S:g} s") from None
        if self.server.per_rollout:
            await self._close_session(session)

    async def acquire(self) -> McpSession:
        """Return a working session with the same tools as at the start; a shared one that broke is replaced once."""
        for again in (not self.server.per_rollout, False):
            session = await self._get_session()
            session.users += 1
            try:
                tools = await session.list_tools()
                if tools != self.tools:
                    raise RolloutFailed(
                        "environment_error", "mcp", describe_tool_changes(self.server.display_name, self.tools, tools)
                    )
            except BaseException as error:
                await self.release(session)
                if not again or not session.broken or not isinstance(error, RolloutFailed):
                    raise
            else:
                return session
        raise AssertionError("the second try returns or raises")

    async def _get_session(self) -> McpSession:
        if self.server.per_rollout:
            return await self._open_session()
        async with self._open_lock:
            if self._shared_session is None or self._shared_session.broken:
                self._shared_session = await self._open_session()
            return self._shared_session

    async def _open_session(self) -> McpSession:
        session = McpSession(self.server, self._folder, self._log)
        self._open_sessions.add(session)
        try:
            await session.open()
        except BaseException:
            self._open_sessions.discard(session)
            raise
        return session

    async def release(self, session: McpSession) -> None:
        """Leave a session; the last user closes it if it admits no new ones."""
        session.users -= 1
        if session.users == 0 and (self.server.per_rollout or session.broken):
            await self._close_session(session)

    async def _close_session(self, session: McpSession) -> None:
        await session.close()
        self._open_sessions.discard(session)

    async def stop(self) -> None:
        """Close every session, also those in use."""
        await asyncio.gather(*(self._close_session(session) for session in list(self._open_sessions)))


class McpServers:
    """All servers of an environment; `tools` are chat completion schemas by name."""

    def __init__(self, servers: Sequence[McpServer], folder: Path | None, log: Path | None) -> None:
        self._servers = [McpServerSessions(server, folder, log) for server in servers]
        self._server_of_tool: dict[str, int] = {}
        self.tools: dict[str, JSON] = {}

    async def start(self, own: dict[str, str]) -> None:
        """Connect to all; an unreachable server, an invalid tool or a name clash with `own` tools refuses the run."""
        known = dict(own)
        for index, server in enumerate(self._servers):
            try:
                await server.start()
                tools = read_offered_tools(server.tools, known, server.server.display_name)
            except RolloutFailed as error:
                raise UsageError(error.message) from None
            self.tools |= tools
            self._server_of_tool |= dict.fromkeys(tools, index)
            known |= dict.fromkeys(tools, server.server.display_name)

    def record_tools(self, path: Path) -> None:
        """Write the tools of a run to a file; every worker that joins later must find the same."""
        path.parent.mkdir(exist_ok=True)
        if write_new(path, encode_pretty(self.tools)):
            return
        before: dict[str, JSON] = decode(path.read_bytes())
        if before != self.tools:
            words = describe_tool_changes("its MCP servers", before.values(), self.tools.values())
            raise UsageError(f"{path.parent.parent}: {words}; start a new run")

    async def stop(self) -> None:
        """Stop all servers."""
        await asyncio.gather(*(server.stop() for server in self._servers))

    async def connect(self) -> McpConnection:
        """Connect a rollout to all servers."""
        connection = McpConnection(self._servers, self._server_of_tool)
        try:
            await connection.open()
        except BaseException:
            await connection.close()
            raise
        return connection


class McpConnection:
    """The sessions of one rollout with the servers."""

    def __init__(self, servers: Sequence[McpServerSessions], server_of_tool: dict[str, int]) -> None:
        self._servers, self._server_of_tool = servers, server_of_tool
        self._sessions: list[McpSession] = []

    async def open(self) -> None:
        """Acquire a session with each server."""
        for server in self._servers:
            self._sessions.append(await server.acquire())

    async def use(self, name: str, arguments: dict[str, JSON]) -> str | ToolOutput:
        """Call a tool on its server."""
        return await self._sessions[self._server_of_tool[name]].call(name, arguments)

    async def close(self) -> None:
        """Release every session."""
        sessions, self._sessions = self._sessions, []
        for server, session in zip(self._servers, sessions, strict=False):
            await server.release(session)


def describe_tool_changes(whose: str, before: Iterable[JSON], now: Iterable[JSON]) -> str:
    """Describe in one line which tools have changed."""
    old, new = ({tool["function"]["name"]: tool for tool in tools} for tools in (before, now))
    words = [f"new {name}" for name in new if name not in old] + [f"no more {name}" for name in old if name not in new]
    words += [f"another {name}" for name in new if name in old and new[name] != old[name]]
    return f"the tools of {whose} have changed: {', '.join(words)}"
