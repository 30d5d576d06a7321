"""A real server over HTTP on loopback."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import support.mcp_server
from rollbook import McpServer
from rollbook.environments.mcp import McpServers
from rollbook.errors import RolloutFailed, UsageError
from support.alive import read_pid


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, support.mcp_server.__file__, str(tmp_path / "port")]
    server = subprocess.Popen(command, env={**os.environ, "TOKEN": "secret"})
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
