"""Let a program inside a container reach one address of this machine, without a network and without help of the image.

A socket that listens is made in the container's network namespace, from outside; it stays there, although we serve it
here. Every connection is passed on to the address. Nothing else can be reached through it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from rollbook.containers.handle import ContainerHandle
from rollbook.errors import ContainerError, UsageError

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 1 << 16


@asynccontextmanager
async def forward_into(handle: ContainerHandle, host: str, port: int) -> AsyncIterator[int]:
    """Pass connections to a port inside on to an address here, while the context is open; yields that port."""
    pid = await handle.main_pid()
    listener = await asyncio.to_thread(_listen_inside, pid)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        connections.add(task)
        task.add_done_callback(connections.discard)
        await _pass_on(reader, writer, host, port)

    server = await asyncio.start_server(serve, sock=listener)
    try:
        yield listener.getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    try:
        there_reader, there_writer = await asyncio.open_connection(host, port)
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
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _listen_inside(pid: int) -> socket.socket:
    """Return a socket that listens on the loopback of a process's network namespace.

    Only the thread that asks enters the namespace, so it is a thread of its own that ends afterwards.
    """
    made: list[socket.socket] = []
    errors: list[OSError] = []

    def listen() -> None:
        try:
            with open(f"/proc/{pid}/ns/net", "rb") as namespace:
                _enter(namespace.fileno())
            made.append(socket.create_server(("127.0.0.1", 0)))
        except OSError as error:
            errors.append(error)

    _run_in_thread(listen)
    if errors:
        if isinstance(errors[0], PermissionError):
            raise UsageError("programs in containers need root here: only root may enter a container's network")
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
