"""One connection to a server: its tools, and calls of them."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult, TextContent

from rollbook.core.json import JSON, encode
from rollbook.environments.mcp.pipe import MOST_BYTES, Pipe
from rollbook.environments.mcp.server import McpServer
from rollbook.environments.toolbox import Misuse
from rollbook.errors import RolloutFailed

T = TypeVar("T")

STARTING_S = 60.0
CLOSING_S = 8.0
CANCELLING_S = 1.0
CONNECT_S = 10.0
ENDED_S = 0.5
MOST_PAGES = 100
BOUND: dict[str, Any] = {"max_sse_event_size": MOST_BYTES}
if BOUND.keys() - inspect.signature(streamable_http_client).parameters:
    BOUND = {}  # the package bounds what comes over HTTP since 2.3, at a megabyte


class Session:
    """A connection, held by a task of its own: who opens one must also close it, and rollouts come and go.

    `spent` says that something was late or broke: whoever is in here may go on, but nobody new comes in.
    """

    def __init__(self, server: McpServer, folder: Path | None, log: Path | None) -> None:
        self.server = server
        self.users = 0
        self.spent = False
        self._pipe = Pipe(server, folder, log) if server.command else None
        self._leaving = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._held: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Reach the server; RolloutFailed says why it cannot be."""
        self._held = held = asyncio.create_task(self._hold(), name=self.server.shown)
        held.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await self._first(self._ready, STARTING_S)
        except BaseException:
            await self.close()
            raise
        if not self._ready.done():
            ended = held.done() or (self._pipe and self._pipe.ended.done())
            await self.close()
            raise self._broken(self._end() if ended else f"was not ready within {STARTING_S:g} s")

    async def _first(self, wanted: asyncio.Future[Any], timeout_s: float | None = None) -> None:
        """Wait for something, or for the end of the server; what came before the end is waited for a moment longer."""
        assert self._held
        ends: list[asyncio.Future[Any]] = [self._held, *([self._pipe.ended] if self._pipe else [])]
        await asyncio.wait([wanted, *ends], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if any(end.done() for end in ends):
            await asyncio.wait([wanted], timeout=ENDED_S)

    def _end(self) -> BaseException | None:
        held = self._held
        return held.exception() if held and held.done() and not held.cancelled() else None

    async def _hold(self) -> None:
        async with self._client() as client:
            self._ready.set_result(client)
            await self._leaving.wait()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        if self._pipe:
            async with Client(self._pipe.open(), cache=None) as client:
                yield client
            return
        token = os.environ.get(self.server.token_env, "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(None, connect=CONNECT_S)) as http:
            way = streamable_http_client(self.server.url, http_client=http, **BOUND)
            async with Client(way, cache=None) as client:
                yield client

    async def close(self) -> None:
        """Let go of the server; a process of ours ends, in peace or not."""
        self.spent = True
        self._leaving.set()
        if self._held is None:
            return
        _, late = await asyncio.wait([self._held], timeout=CLOSING_S if self._ready.done() else 0)
        if late:
            self._held.cancel()
            await asyncio.wait([self._held], timeout=CLOSING_S)

    async def tools(self) -> list[JSON]:
        """All its tools, as chat completions takes them, by name: some servers list them as they come."""
        found: list[JSON] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._answer(self._ready.result().list_tools(cursor=cursor))
            for tool in page.tools:
                shown = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
                found.append({"type": "function", "function": shown})
            cursor = page.next_cursor
            if cursor is None:
                return sorted(found, key=lambda tool: str(tool["function"]["name"]))
        raise self._broken(f"lists its tools on more than {MOST_PAGES} pages")

    async def call(self, name: str, arguments: dict[str, JSON]) -> str:
        """What a tool says; Misuse where the server says that the arguments are wrong."""
        return spoken(await self._answer(self._ready.result().call_tool(name, arguments)))

    async def _answer(self, asking: Coroutine[Any, Any, T]) -> T:
        """Wait for the server's answer, or for its end."""
        answer = asyncio.create_task(asking, name="asking an MCP server")
        try:
            await self._first(answer)
            if answer.done():
                return answer.result()
            raise self._broken(self._end())
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise Misuse(error.message) from None
            gone = error.code == CONNECTION_CLOSED
            raise self._broken(error if gone else f"answers with an error: {error.message}") from None
        except (ValueError, RuntimeError, OSError) as error:
            raise self._broken(f"answers with what is no answer: {reason(error)}") from None
        finally:
            if not answer.done():
                self.spent = True
                answer.cancel()
                await asyncio.wait({answer}, timeout=CANCELLING_S)

    def _broken(self, why: BaseException | str | None) -> RolloutFailed:
        self.spent = True
        words = [self.server.shown, why if isinstance(why, str) else f"is gone: {reason(why)}"]
        last = self._pipe.last_words() if self._pipe else ""
        return RolloutFailed("environment_error", "mcp", " ".join(words) + (f" ({last})" if last else ""))


def reason(error: BaseException | None) -> str:
    """The innermost reason, in one line: task groups wrap what went wrong."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = " ".join(str(error).split()) if error else ""
    return words or (type(error).__name__ if error else "it hung up")


def spoken(result: CallToolResult) -> str:
    """A result as a model reads it: its texts, else what it is as JSON; what is no text is named."""
    parts = [part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content]
    text = "\n".join(parts) if parts else encode(result.structured_content).decode()
    return f"Error: {text}" if result.is_error else text
