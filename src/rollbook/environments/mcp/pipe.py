"""A server that is a command: started with a keeper, spoken to by lines of JSON over its standard input and output."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from rollbook.environments.mcp.server import McpServer
from rollbook.processes.child import Child, module_argv

COMMON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
MOST_BYTES = 64 << 20
"""The longest message that a server may write; the package's own reader takes quadratic time and has no bound."""

ENDING_S = 5.0

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class Pipe:
    """One process of a server; `ended` comes when it says no more, `last_words` are what it complained of."""

    def __init__(self, server: McpServer, folder: Path | None, log: Path | None) -> None:
        self._server, self._folder, self._log = server, folder, log
        self._child: Child | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def last_words(self) -> str:
        """The last line that it wrote to standard error, if any."""
        lines = self._child.last_words() if self._child else ""
        return lines[-500:]

    def open(self) -> Transport:
        """Start it, and end it with the context."""
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Streams]:
        ours, theirs = socket.socketpair()
        with theirs:
            names = ",".join((*COMMON, *self._server.env))
            argv = module_argv("rollbook.processes.keeper", str(theirs.fileno()), names, *self._server.command)
            self._child = child = Child(argv, cwd=self._folder, pass_fds=[theirs.fileno()], log=self._log)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MOST_BYTES)
            try:
                async with self._streams(reader, writer) as streams:
                    yield streams
            finally:
                writer.transport.abort()  # the keeper notices, and lets the server end in peace if it will
            await child.exited(ENDING_S)
        finally:
            child.kill_now()

    @asynccontextmanager
    async def _streams(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[Streams]:
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, reader, incoming)
            tasks.start_soon(_write, writer, outgoing)
            try:
                yield received, sent
            finally:
                tasks.cancel_scope.cancel()
                for stream in (incoming, received, sent, outgoing):
                    stream.close()

    async def _read(self, reader: asyncio.StreamReader, incoming: Incoming) -> None:
        """Hand on every message until the server ends, or writes one beyond all bounds: then it is taken for ended."""
        try:
            with suppress(ConnectionError, ValueError, anyio.ClosedResourceError, anyio.BrokenResourceError), incoming:
                while line := await reader.readline():
                    await incoming.send(_message(line))
        finally:
            if not self.ended.done():
                self.ended.set_result(None)


def _message(line: bytes) -> SessionMessage | Exception:
    """A line as a message; what is none (a server that prints) is handed on as the error it is."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _write(writer: asyncio.StreamWriter, outgoing: Outgoing) -> None:
    """Write every message until the server takes no more; then nobody waits for one to be taken."""
    with suppress(ConnectionError, anyio.ClosedResourceError), outgoing:
        async for message in outgoing:
            writer.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await writer.drain()
