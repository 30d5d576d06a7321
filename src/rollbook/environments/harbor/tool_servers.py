"""The MCP servers of a task, inside its container; the agent gets their tools. Each rollout has its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rollbook.containers import ContainerHandle, client_variables, forward_out
from rollbook.core import JSON
from rollbook.environments.environment import McpServer
from rollbook.environments.harbor.task_files import McpTable
from rollbook.environments.tools import ToolMisuse, ToolOutput, read_offered_tools
from rollbook.errors import ContainerError, RolloutFailed, UsageError

if TYPE_CHECKING:
    from rollbook.environments.mcp import McpSession

LISTING_S = STARTING_S = 60.0
DEFAULT_PORT = 80


class TaskServers:
    """The servers of one rollout: `start` after each start of the container, `stop` before it ends."""

    def __init__(self, handle: ContainerHandle, tables: Sequence[McpTable], taken: Sequence[str] = ()) -> None:
        """`taken` are the names of the agent's own tools."""
        self._handle, self._tables, self._taken = handle, tables, taken
        self._sessions: list[McpSession] = []
        self._forwarders = AsyncExitStack()
        self._session_of_tool: dict[str, McpSession] = {}
        self._agent_has_worked = False
        self.tools: list[JSON] = []

    async def start(self, user: str) -> None:
        """Start every server as a user of the container, and list the tools.

        Once the agent has worked, a server that does not start may be its doing, and its tools are only missing.
        """
        known = dict.fromkeys(self._taken, "the agent")
        self.tools = []
        has_worked, self._agent_has_worked = self._agent_has_worked, True
        if not has_worked:
            await self._require_commands(user)
        for table in self._tables:
            try:
                await self._start_one(table, user, known)
            except RolloutFailed:
                if not has_worked or not await self._handle.is_running():
                    raise

    async def _start_one(self, table: McpTable, user: str, known: dict[str, str]) -> None:
        session = await self._open(table, user)
        tools = read_tools(await self._list(session, table), known, table.name)
        known |= dict.fromkeys(tools, f"MCP server {table.name}")
        self._session_of_tool |= dict.fromkeys(tools, session)
        self.tools += tools.values()

    async def _require_commands(self, user: str) -> None:
        """Fail at once if the image lacks the command of a server: no later attempt finds it."""
        for table in self._tables:
            if table.command and (await self._handle.run(f"command -v {quote(table.command)}", user=user)).exit_code:
                why = f"MCP server {table.name}: the image has no command {table.command}"
                raise RolloutFailed("image_error", "mcp", why)

    async def _open(self, table: McpTable, user: str) -> McpSession:
        session = _load_session_class()(await self._make_server(table, user), None, None)
        self._sessions.append(session)
        await session.open()
        return session

    async def _make_server(self, table: McpTable, user: str) -> McpServer:
        """Return the server as this process reaches it: by a command of the runtime, or by a port that leads inside."""
        if table.is_http:
            assert table.url
            address = urlsplit(table.url)
            port = await self._forwarders.enter_async_context(
                forward_out(self._handle, address.port or DEFAULT_PORT, STARTING_S)
            )
            return McpServer(url=address._replace(netloc=f"127.0.0.1:{port}").geturl(), name=table.name)
        assert table.command
        command = self._handle.exec_command([table.command, *table.args], user=user)
        return McpServer(command=command, env=client_variables(), name=table.name)

    async def _list(self, session: McpSession, table: McpTable) -> list[JSON]:
        try:
            async with asyncio.timeout(LISTING_S):
                return await session.list_tools()
        except TimeoutError:
            why = f"MCP server {table.name} did not list its tools within {LISTING_S:g} s"
            raise RolloutFailed("environment_error", "mcp", why) from None

    async def call(self, name: str, arguments: dict[str, JSON], timeout_s: float) -> str | ToolOutput:
        """Call a tool; one that is late, or whose server broke, is an error that the model sees.

        The server runs where the agent can end it: an agent must not avoid its score by that.
        """
        if not (session := self._session_of_tool.get(name)):
            raise ToolMisuse(f"{name} is not reachable: its server did not start again")
        try:
            async with asyncio.timeout(timeout_s):
                return await session.call(name, arguments)
        except TimeoutError:
            raise ToolMisuse(f"{name} took longer than {timeout_s:g} s") from None
        except RolloutFailed as error:
            if not await self._handle.is_running():
                raise ContainerError(error.message) from None
            raise ToolMisuse(error.message) from None

    async def stop(self) -> None:
        """Disconnect; a server that is a command ends with its standard input, or is killed.

        podman does not release the files of a container while a command of it goes on that nobody waits for.
        """
        sessions, self._sessions, self._session_of_tool = self._sessions, [], {}
        await asyncio.gather(*(session.close() for session in sessions))
        await self._forwarders.aclose()
        if any(session.server.command for session in sessions):
            await self._handle.end_processes()


def read_tools(offered: list[JSON], known: dict[str, str], server: str) -> dict[str, JSON]:
    """Return the tools of a server by name; a mistake in them is one of the image, and no attempt can change it."""
    try:
        return read_offered_tools(offered, known, f"MCP server {server}")
    except RolloutFailed as error:
        raise RolloutFailed("image_error", "mcp", error.message) from None


def _load_session_class() -> type[McpSession]:
    try:
        from rollbook.environments.mcp import McpSession
    except ImportError as error:
        raise UsageError(
            f"the task has MCP servers, which need a package: pip install 'rollbook[mcp]' ({error})"
        ) from None
    return McpSession
