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
ACCEPT_PAUSE_S = 1.0

MAX_CONNECTIONS = 128
"""Connections that one forwarder passes on at a time; further ones wait until one ends.

Each takes up to three descriptors of this process, and code in a container may open any number of them.
"""

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
    listener.setblocking(False)
    accepting = asyncio.create_task(_accept_connections(listener, connect), name="forwarder")
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listener.close()


async def _accept_connections(listener: socket.socket, connect: Connect) -> None:
    """Accept a connection whenever fewer than MAX_CONNECTIONS are open; at the end, close all of them."""
    free, loop = asyncio.Semaphore(MAX_CONNECTIONS), asyncio.get_running_loop()
    async with asyncio.TaskGroup() as connections:
        while True:
            await free.acquire()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError:  # this process has no descriptor left, or the client has gone
                free.release()
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            connections.create_task(_pass_on(accepted, connect)).add_done_callback(lambda _: free.release())


async def _pass_on(accepted: socket.socket, connect: Connect) -> None:
    """Pass on one connection until the server, or a client that has gone, ends it."""
    try:
        reader, writer = await asyncio.open_connection(sock=accepted)
    except OSError:
        accepted.close()
        return
    try:
        with suppress(OSError, ContainerError):
            await _exchange(reader, writer, connect)
            writer.close()
            await writer.wait_closed()  # a client that does not read what is left keeps its descriptor, so its place
    finally:
        writer.transport.abort()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connect: Connect) -> None:
    there_reader, there_writer = await connect()
    sending = asyncio.create_task(_copy(reader, there_writer))
    try:
        await _copy(there_reader, writer)
    finally:
        sending.cancel()  # a client may keep its end open when the server has closed its own
        there_writer.transport.abort()
        await asyncio.gather(sending, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, RuntimeError):  # uvloop raises the latter for a connection that was closed
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    with suppress(ConnectionError, RuntimeError):  # a reset ends the other connection too
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
