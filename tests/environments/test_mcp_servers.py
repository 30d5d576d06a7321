"""Real MCP servers: what rollouts share and what they do not, and how a broken server is handled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

import support.mcp_server
from rollbook import McpServer
from rollbook.environments.mcp import MAX_SERVER_REQUESTS, McpServers, describe_tool_changes
from rollbook.errors import RolloutFailed, UsageError
from support.alive import alive, eventually

T = TypeVar("T")
COMMAND = [sys.executable, support.mcp_server.__file__]


def with_servers(
    work: Callable[[McpServers], Awaitable[T]], server: McpServer, *, folder: Path | None = None, own: str = "look"
) -> T:
    async def go() -> T:
        servers = McpServers([server], folder, None)
        try:
            await servers.start({own: f"the @tool method {own}"})
            return await work(servers)
        finally:
            await servers.stop()

    return asyncio.run(go())


def pid_in(text: str) -> int:
    return int(text.split()[0])


def test_one_process_serves_all_rollouts_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWN", "shown")
    monkeypatch.setenv("SECRET", "secret")

    async def work(servers: McpServers) -> int:
        one, two = await servers.connect(), await servers.connect()
        assert await one.use("add", {"a": 1}) == "1"
        assert await two.use("add", {"a": 1, "b": 2}) == "4"
        assert await one.use("table", {}) == '{\n  "a": 1\n}\n{\n  "b": 2\n}'
        assert await one.use("refuse", {"why": "no"}) == "Error: Error executing tool refuse: no"
        assert len(await one.use("flood", {"size": 3_000_000})) == 3_000_000
        text = await two.use("whoami", {})
        await one.close()
        assert text.split()[1:] == ["shown", tmp_path.name], "it sees what was named, in the environment's folder"
        return pid_in(text)

    pid = with_servers(work, McpServer(command=COMMAND, env=["SHOWN"]), folder=tmp_path)
    assert eventually(lambda: not alive(pid))


def test_a_process_of_ones_own_is_shared_with_nobody_and_ends_with_the_rollout() -> None:
    async def work(servers: McpServers) -> None:
        one, two = await asyncio.gather(servers.connect(), servers.connect())
        assert [await one.use("add", {"a": 1}), await two.use("add", {"a": 1})] == ["1", "1"]
        pids = [pid_in(await visit.use("whoami", {})) for visit in (one, two)]
        await one.close()
        assert (alive(pids[0]), alive(pids[1])) == (False, True)

    with_servers(work, McpServer(command=COMMAND, per_rollout=True))


def test_after_a_call_that_was_late_or_a_server_that_died_newcomers_get_a_new_one() -> None:
    async def work(servers: McpServers) -> None:
        late = await servers.connect()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await late.use("hang", {})
        second = await servers.connect()
        assert await late.use("add", {"a": 1}) == "1", "whoever is there may go on"
        assert await second.use("add", {"a": 2}) == "2"
        first_pid = pid_in(await late.use("whoami", {}))
        await late.close()
        assert not alive(first_pid), "the last one out closes the door"
        with pytest.raises(RolloutFailed, match="is not reachable: Connection closed") as caught:
            await second.use("die", {})
        assert caught.value.kind == "environment_error"
        with pytest.raises(RolloutFailed, match="is not reachable"):
            await second.use("add", {"a": 1})
        third = await servers.connect()
        assert await third.use("add", {"a": 3}) == "3"

    with_servers(work, McpServer(command=COMMAND))


def test_a_server_that_died_unseen_costs_newcomers_nothing() -> None:
    async def work(servers: McpServers) -> str:
        import os
        import signal

        visit = await servers.connect()
        os.kill(pid_in(await visit.use("whoami", {})), signal.SIGKILL)
        await visit.close()
        return await (await servers.connect()).use("add", {"a": 3})

    assert with_servers(work, McpServer(command=COMMAND)) == "3"


def test_tools_that_change_are_an_error_that_names_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EXTRA_TOOL", "")

    async def work(servers: McpServers) -> None:
        servers.record_tools(tmp_path / "tools" / "a.json")
        servers.record_tools(tmp_path / "tools" / "a.json")
        monkeypatch.setenv("EXTRA_TOOL", "1")
        with pytest.raises(RolloutFailed, match="have changed: new extra") as caught:
            await servers.connect()
        assert caught.value.kind == "environment_error"
        servers.tools.pop("die")
        with pytest.raises(UsageError, match="its MCP servers have changed: no more die; start a new run"):
            servers.record_tools(tmp_path / "tools" / "a.json")

    with_servers(work, McpServer(command=COMMAND, env=["EXTRA_TOOL"], per_rollout=True))


def test_a_changed_description_is_a_changed_tool() -> None:
    one, other = ([{"function": {"name": "a", "description": words}}] for words in ("x", "y"))
    assert describe_tool_changes("b", one, other) == "the tools of b have changed: another a"


async def nothing(servers: McpServers) -> None:
    raise AssertionError("it must not come to this")


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (McpServer(command=["no-such-command"]), "is not reachable: .*cannot start no-such-command"),
        (McpServer(command=[sys.executable, "-c", "raise SystemExit('not today')"]), "is not reachable: .*not today"),
        (McpServer(command=["true"]), "is not reachable: "),
        (McpServer(command=["a"], env=["NO_SUCH_VARIABLE"]), "environment variable NO_SUCH_VARIABLE is not set"),
        (McpServer(url="http://127.0.0.1:9/mcp", token_env="NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE is not set"),
        (McpServer(url="http://127.0.0.1:9/mcp"), "http://127.0.0.1:9/mcp is not reachable: .*connection"),
    ],
    ids=["command", "exits", "silent", "variable", "token", "url"],
)
def test_a_server_that_cannot_be_reached_is_told_in_one_line(server: McpServer, words: str) -> None:
    with pytest.raises(UsageError, match=f"(?i)MCP server .*{words}") as caught:
        with_servers(nothing, server)
    assert "\n" not in str(caught.value)


def test_a_server_with_a_tool_that_there_is_already_is_refused() -> None:
    with pytest.raises(UsageError, match=r"mcp_server.py names 'add', and so does the @tool method add: rename one"):
        with_servers(nothing, McpServer(command=COMMAND), own="add")


def test_what_a_server_prints_that_is_no_message_does_no_harm(tmp_path: Path) -> None:
    chatty = tmp_path / "chatty.py"
    chatty.write_text(
        f"print('welcome', flush=True)\nimport runpy, sys\nrunpy.run_path({COMMAND[1]!r}, {{}}, '__main__')"
    )

    async def work(servers: McpServers) -> str:
        return await (await servers.connect()).use("add", {"a": 3})

    assert with_servers(work, McpServer(command=[sys.executable, str(chatty)])) == "3"


def test_a_server_that_never_lists_its_tools_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.environments.mcp.LISTING_S", 0.2)
    monkeypatch.setattr("rollbook.environments.mcp.McpSession.list_tools", lambda self: asyncio.sleep(60))
    with pytest.raises(UsageError, match=r"did not list its tools within 0.2 s"):
        with_servers(nothing, McpServer(command=COMMAND))


PINGING = """
import json, sys

def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def answer(method, params):
    if method == "initialize":
        about = {"name": "x", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("some", "endless")]}
    number = 0
    while params["name"] == "endless" or number < 200:
        send({"id": number, "method": "ping"})
        assert params["name"] == "endless" or json.loads(sys.stdin.readline())["id"] == number
        number += 1
    return {"content": [{"type": "text", "text": "done"}]}

for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") in ("initialize", "tools/list", "tools/call"):
        send({"id": asked["id"], "result": answer(asked["method"], asked.get("params"))})
    elif "id" in asked and "method" in asked:
        send({"id": asked["id"], "error": {"code": -32601, "message": "no"}})
"""


def test_a_server_that_pings_without_end_gets_few_replies_at_once(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(PINGING)

    async def work() -> None:
        servers = McpServers([McpServer(command=[sys.executable, str(tmp_path / "server.py")])], None, None)
        await servers.start({})
        session = await servers.connect()
        assert await session.use("some", {}) == "done"
        call = asyncio.create_task(session.use("endless", {}))
        for _ in range(10):
            await asyncio.sleep(0.1)
            assert len(asyncio.all_tasks()) < 2 * MAX_SERVER_REQUESTS
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await servers.stop()

    asyncio.run(work())
