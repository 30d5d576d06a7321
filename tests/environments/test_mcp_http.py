"""A real server over HTTP on loopback."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

import support.mcp_server
from rollbook import McpServer
from rollbook.environments.mcp import MAX_MESSAGE_BYTES, McpServers, limit_body
from rollbook.errors import RolloutFailed, UsageError
from support.alive import read_pid


@pytest.fixture
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    command = [sys.executable, support.mcp_server.__file__, str(tmp_path / "port")]
    server = subprocess.Popen(command, env={**os.environ, **getattr(request, "param", {"TOKEN": "secret"})})
    yield f"http://127.0.0.1:{read_pid(tmp_path / 'port', 30)}/mcp"
    server.kill()
    server.wait()


def test_tools_are_used_over_http_with_a_token_and_its_end_is_a_failure(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_TOKEN", "wrong")

    async def work() -> None:
        with pytest.raises(UsageError, match=r"MCP server http://127.0.0.1:\d+/mcp"):
            await McpServers([McpServer(url=url, token_env="DESK_TOKEN")], None, None).start({})
        monkeypatch.setenv("DESK_TOKEN", "secret")
        servers = McpServers([McpServer(url=url, token_env="DESK_TOKEN")], None, None)
        await servers.start({})
        one, two = await servers.connect(), await servers.connect()
        assert await asyncio.gather(one.use("add", {"a": 1}), two.use("flood", {"size": 5})) == ["1", "xxxxx"]
        assert len(await one.use("flood", {"size": 3_000_000})) == 3_000_000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await one.use("hang", {})
        three = await servers.connect()
        assert await three.use("add", {"a": 1}) == "2"
        with pytest.raises(RolloutFailed, match="is not reachable") as caught:
            await three.use("die", {})
        assert caught.value.kind == "environment_error"
        with pytest.raises(RolloutFailed, match="is not reachable"):
            await servers.connect()
        await servers.stop()

    asyncio.run(work())


@pytest.mark.parametrize("url", [{}, {"JSON": "1"}], ids=["events", "JSON"], indirect=True)
def test_a_message_above_the_limit_is_a_failure(url: str) -> None:
    async def work() -> None:
        servers = McpServers([McpServer(url=url)], None, None)
        await servers.start({})
        session = await servers.connect()
        assert len(await session.use("flood", {"size": MAX_MESSAGE_BYTES // 3})) == MAX_MESSAGE_BYTES // 3
        with pytest.raises(RolloutFailed, match=r"exceed(s|ed)( the)? 16777216 byte") as caught:
            await session.use("flood", {"size": MAX_MESSAGE_BYTES})
        assert caught.value.kind == "environment_error"
        await servers.stop()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("method", "status", "headers", "most"),
    [
        ("POST", 200, {"Content-Type": "application/json"}, MAX_MESSAGE_BYTES),
        ("POST", 404, {"Content-Type": "application/json"}, MAX_MESSAGE_BYTES),
        ("POST", 307, {"Content-Type": "text/event-stream"}, MAX_MESSAGE_BYTES),
        ("DELETE", 200, {"Content-Type": "text/event-stream"}, MAX_MESSAGE_BYTES),
        ("POST", 200, {"Content-Type": "application/json", "Content-Encoding": "gzip"}, 0),
        ("GET", 200, {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}, 0),
    ],
)
def test_no_more_of_a_body_is_read_than_one_message_may_have(
    method: str, status: int, headers: dict[str, str], most: int
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            yield b" " * (1 << 20)
            sent += 1 << 20

    async def work() -> None:
        transport = httpx2.MockTransport(lambda _: httpx2.Response(status, headers=headers, content=endless()))
        async with httpx2.AsyncClient(transport=transport, event_hooks={"response": [limit_body]}) as http:
            with pytest.raises(httpx2.StreamError):
                await http.request(method, "http://host/mcp")

    asyncio.run(work())
    assert sent <= most


def test_events_may_have_any_number_of_bytes_together() -> None:
    async def events() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"data: " + b"x" * (1 << 20) + b"\n\n"

    async def work() -> int:
        answer = httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=events())
        transport = httpx2.MockTransport(lambda _: answer)
        async with httpx2.AsyncClient(transport=transport, event_hooks={"response": [limit_body]}) as http:
            return len((await http.get("http://host/mcp")).content)

    assert asyncio.run(work()) > MAX_MESSAGE_BYTES
