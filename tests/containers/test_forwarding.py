"""Connections that are passed on between a network namespace and an address, with the namespace of this process."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from rollbook.containers import ContainerHandle, forward_into
from rollbook.containers.forwarding import MAX_CONNECTIONS
from rollbook.processes import run_event_loop

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root may enter the network of a container")

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class OwnNamespace:
    """Stands for a container whose network is that of this process."""

    async def main_pid(self) -> int:
        return os.getpid()


class Echo:
    """A server that sends back what it reads, and ends a connection after the line `end`."""

    def __init__(self) -> None:
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while (line := await reader.readline()) and line != b"end\n":
                writer.write(line)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def forwarded() -> AsyncIterator[tuple[Echo, Callable[[], Awaitable[Connection]]]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    try:
        handle = cast("ContainerHandle", OwnNamespace())
        async with forward_into(handle, *server.sockets[0].getsockname()) as port:
            yield echo, lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        server.close()


async def ask(connection: Connection) -> bytes:
    reader, writer = connection
    writer.write(b"x\n")
    return await asyncio.wait_for(reader.readline(), 10)


async def is_answered(connection: Connection) -> bool:
    connection[1].write(b"x\n")
    try:
        return bool(await asyncio.wait_for(connection[0].readline(), 0.2))
    except TimeoutError:
        return False


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("run", [asyncio.run, lambda main: run_event_loop(lambda: main)])
def test_connections_above_the_limit_wait_until_others_end(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with forwarded() as (echo, connect):
            first = [await connect() for _ in range(MAX_CONNECTIONS)]
            assert [await ask(each) for each in first] == [b"x\n"] * MAX_CONNECTIONS
            later = [await connect() for _ in range(5)]
            assert not any([await is_answered(each) for each in later])
            assert echo.open == MAX_CONNECTIONS
            for _, writer in first[:5]:
                writer.close()
            assert [await ask(each) for each in later] == [b"x\n"] * 5
            assert echo.open == MAX_CONNECTIONS
        await wait_until(lambda: echo.open == 0)

    run(main())


def test_a_connection_that_the_server_ends_is_free_again_although_the_client_keeps_it() -> None:
    async def main() -> None:
        async with forwarded() as (_, connect):
            kept = []
            for _ in range(MAX_CONNECTIONS + 5):
                reader, writer = await connect()
                kept.append(writer)
                writer.write(b"x\nend\n")
                assert await asyncio.wait_for(reader.read(), 10) == b"x\n"

    asyncio.run(main())


def test_a_client_that_is_reset_ends_its_connection_to_the_server() -> None:
    async def main() -> None:
        async with forwarded() as (echo, connect):
            _, writer = connection = await connect()
            await ask(connection)
            own = writer.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await wait_until(lambda: echo.open == 0)

    asyncio.run(main())


def test_a_long_answer_arrives_whole() -> None:
    async def main() -> None:
        line = b"y" * (60 << 10) + b"\n"
        async with forwarded() as (_, connect):
            reader, writer = await connect()
            writer.write(line * 100 + b"end\n")
            assert await asyncio.wait_for(reader.read(), 30) == line * 100

    asyncio.run(main())
