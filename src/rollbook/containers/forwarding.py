"""Let a program inside a container reach one address of this machine, or us one port inside, without a network.

A socket is made in the container's network namespace, from outside; it stays there, although we use it here. Every
connection is passed on to the one address. Nothing else can be reached through it, and the image need not help.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from rollbook.containers.handle import ContainerHandle
from rollbook.errors import ContainerError, UsageError

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 1 << 16
CONNECT_PAUSE_S = 0.2
CONNECT_S = 10.0


Connect: TypeAlias = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def forward_into(handle: ContainerHandle, host: str, port: int) -> AsyncIterator[int]:
    """Pass connections to a port inside on to an address here, while the context is open; yields that port."""
    pid = await handle.main_pid()
    listener = await asyncio.to_thread(_make_inside, pid, lambda: socket.create_server(("127.0.0.1", 0)))
    async with _serve(listener, lambda: asyncio.open_connection(host, port)):
        yield listener.getsockname()[1]


@asynccontextmanager
async def forward_out(handle: ContainerHandle, port: int, timeout_s: float) -> AsyncIterator[int]:
    """Pass connections to a port here on to a port inside, while the context is open; yields our port.

    A server inside may still be starting: ContainerError if nothing listens there within `timeout_s`.
    """
    pid = await handle.main_pid()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        inside = await asyncio.to_thread(_make_inside, pid, socket.socket)
        try:
            async with asyncio.timeout(CONNECT_S):  # a server inside may accept nothing
                await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", port))
        except BaseException:
            inside.close()
            raise
        return await asyncio.open_connection(sock=inside)

    await _wait_for_server(connect, port, timeout_s)
    listener = socket.create_server(("127.0.0.1", 0))
    async with _serve(listener, connect):
        yield listener.getsockname()[1]


async def _wait_for_server(connect: Connect, port: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            _, writer = await connect()
        except OSError as error:
            if time.monotonic() > deadline:
                raise ContainerError(f"nothing listens on port {port} of the container: {error}") from None
            await asyncio.sleep(CONNECT_PAUSE_S)
            continue
        writer.close()
        return


@asynccontextmanager
async def _serve(listener: socket.socket, connect: Connect) -> AsyncIterator[None]:
    """Pass every connection of a listener on to a new connection of `connect`."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        connections.add(task)
        task.add_done_callback(connections.discard)
        with suppress(asyncio.CancelledError):  # by us, at the end; the stream would print it as an error
            await _pass_on(reader, writer, connect)

    server = await asyncio.start_server(serve, sock=listener)
    try:
        yield
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connect: Connect) -> None:
    try:
        there_reader, there_writer = await connect()
    except OSError:
        writer.close()
        return
    copies = [_copy(reader, there_writer), _copy(there_reader, writer)]
    try:
        await asyncio.gather(*copies)
    finally:
        for each in (writer, there_writer):
            each.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, RuntimeError):  # uvloop raises the latter for a connection that was closed
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _make_inside(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    """Return a socket that is made in the network namespace of a process, and belongs to it for ever.

    Only the thread that asks enters the namespace, so it is a thread of its own that ends afterwards.
    """
    made: list[socket.socket] = []
    errors: list[OSError] = []

    def enter_and_make() -> None:
        try:
            with open(f"/proc/{pid}/ns/net", "rb") as namespace:
                _enter(namespace.fileno())
            made.append(make())
        except OSError as error:
            errors.append(error)

    _run_in_thread(enter_and_make)
    if errors:
        if isinstance(errors[0], PermissionError):
            raise UsageError("this needs root: only root may enter the network of a container")
        raise ContainerError(f"no socket in the container's network: {errors[0]}")
    made[0].setblocking(False)
    return made[0]


def _run_in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, name="network namespace")
    thread.start()
    thread.join()


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
