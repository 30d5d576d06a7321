"""The MCP servers of one environment in one worker: reached at its start, visited by rollouts, ended with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rollbook.book.durable import write_new
from rollbook.core.json import JSON, decode, pretty
from rollbook.environments.mcp.server import McpServer
from rollbook.environments.mcp.session import Session
from rollbook.environments.offered import read_offers
from rollbook.errors import RolloutFailed, UsageError

LISTING_S = 60.0


class Place:
    """One server: a session that all share, or one for each who comes."""

    def __init__(self, server: McpServer, folder: Path | None, log: Path | None) -> None:
        self.server, self._folder, self._log = server, folder, log
        self.tools: list[JSON] = []
        self._shared: Session | None = None
        self._opening = asyncio.Lock()
        self._open: set[Session] = set()

    async def start(self) -> None:
        """Reach it and see what tools it has."""
        wanted = (*self.server.env, *filter(None, [self.server.token_env]))
        for name in wanted:
            if name not in os.environ:
                raise UsageError(f"{self.server.shown}: the environment variable {name} is not set")
        session = await self._session()
        try:
            async with asyncio.timeout(LISTING_S):
                self.tools = await session.tools()
        except TimeoutError:
            raise UsageError(f"{self.server.shown} did not list its tools within {LISTING_S:g} s") from None
        if self.server.per_rollout:
            await self._close(session)

    async def enter(self) -> Session:
        """A session with a living server that has the tools it had; one that somebody else broke is made anew."""
        for again in (not self.server.per_rollout, False):
            session = await self._session()
            session.users += 1
            try:
                now = await session.tools()
                if now != self.tools:
                    raise RolloutFailed("environment_error", "mcp", changed(self.server.shown, self.tools, now))
            except BaseException as error:
                await self.leave(session)
                if not again or not session.spent or not isinstance(error, RolloutFailed):
                    raise
            else:
                return session
        raise AssertionError("the second try returns or raises")

    async def _session(self) -> Session:
        if self.server.per_rollout:
            return await self._opened()
        async with self._opening:
            if self._shared is None or self._shared.spent:
                self._shared = await self._opened()
            return self._shared

    async def _opened(self) -> Session:
        session = Session(self.server, self._folder, self._log)
        self._open.add(session)
        try:
            await session.open()
        except BaseException:
            self._open.discard(session)
            raise
        return session

    async def leave(self, session: Session) -> None:
        """The last one out of a session that takes nobody else closes it."""
        session.users -= 1
        if session.users == 0 and (self.server.per_rollout or session.spent):
            await self._close(session)

    async def _close(self, session: Session) -> None:
        await session.close()
        self._open.discard(session)

    async def stop(self) -> None:
        """End every session, whoever is still in it."""
        await asyncio.gather(*(self._close(session) for session in list(self._open)))


class Servers:
    """All of an environment's servers; `tools` by name, as chat completions takes them."""

    def __init__(self, servers: Sequence[McpServer], folder: Path | None, log: Path | None) -> None:
        self._places = [Place(server, folder, log) for server in servers]
        self._where: dict[str, int] = {}
        self.tools: dict[str, JSON] = {}

    async def start(self, own: dict[str, str]) -> None:
        """Reach them all; what cannot be reached, shown to a model or told from its `own` tools refuses the run."""
        known = dict(own)
        for at, place in enumerate(self._places):
            try:
                await place.start()
                found = read_offers(place.tools, known, place.server.shown)
            except RolloutFailed as error:
                raise UsageError(error.message) from None
            self.tools |= found
            self._where |= dict.fromkeys(found, at)
            known |= dict.fromkeys(found, place.server.shown)

    def keep(self, path: Path) -> None:
        """Write down what tools a run has; whoever joins it later must find the same."""
        path.parent.mkdir(exist_ok=True)
        if write_new(path, pretty(self.tools)):
            return
        before: dict[str, JSON] = decode(path.read_bytes())
        if before != self.tools:
            words = changed("its MCP servers", before.values(), self.tools.values())
            raise UsageError(f"{path.parent.parent}: {words}; start a new run")

    async def stop(self) -> None:
        """End them all."""
        await asyncio.gather(*(place.stop() for place in self._places))

    async def enter(self) -> Visit:
        """Let a rollout in."""
        visit = Visit(self._places, self._where)
        try:
            await visit.begin()
        except BaseException:
            await visit.leave()
            raise
        return visit


class Visit:
    """One rollout's time with the servers."""

    def __init__(self, places: Sequence[Place], where: dict[str, int]) -> None:
        self._places, self._where = places, where
        self._sessions: list[Session] = []

    async def begin(self) -> None:
        """A session with each."""
        for place in self._places:
            self._sessions.append(await place.enter())

    async def use(self, name: str, arguments: dict[str, JSON]) -> str:
        """Call a tool where it is."""
        return await self._sessions[self._where[name]].call(name, arguments)

    async def leave(self) -> None:
        """Let go of every session."""
        sessions, self._sessions = self._sessions, []
        for place, session in zip(self._places, sessions, strict=False):
            await place.leave(session)


def changed(whose: str, before: Iterable[JSON], now: Iterable[JSON]) -> str:
    """Which tools are not what they were, in one line."""
    old, new = ({tool["function"]["name"]: tool for tool in tools} for tools in (before, now))
    words = [f"new {name}" for name in new if name not in old] + [f"no more {name}" for name in old if name not in new]
    words += [f"another {name}" for name in new if name in old and new[name] != old[name]]
    return f"the tools of {whose} are not what they were: {', '.join(words)}"
