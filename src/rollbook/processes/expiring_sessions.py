"""Sessions that clients hold and rarely close: a bounded number, closed when unused.

`SessionTable` records which sessions are in use, which are idle and which have expired. It has no lock and closes
nothing, so its owner can be an event loop (`ExpiringSessions`) or threads that share a lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from typing import Generic, TypeVar

from rollbook.errors import RolloutFailed, UsageError

T = TypeVar("T")

IDLE_TIMEOUT_S = 3600.0
SWEEP_INTERVAL_S = 5.0
MAX_SESSIONS = 4096


class NoSession(UsageError):
    """The request names no open session."""


class SessionEntry(Generic[T]):
    """A session, how many requests use it, and when the last one ended."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.lock = asyncio.Lock()
        self.users = 0
        self.last_used = time.monotonic()


class SessionTable(Generic[T]):
    """Sessions by name, the one that was idle longest first."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._entries: dict[str, SessionEntry[T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def get(self, name: str) -> SessionEntry[T] | None:
        """Return the entry of a name; None if there is none, or none any more."""
        return self._entries.get(name)

    def add(self, name: str, value: T) -> SessionEntry[T]:
        """Add a session that is not in use yet."""
        entry = self._entries[name] = SessionEntry(value)
        return entry

    def end_use(self, name: str, entry: SessionEntry[T]) -> None:
        """Record that a request is over: the session is the last to expire now, if it is still here."""
        entry.users -= 1
        entry.last_used = time.monotonic()
        if self._entries.get(name) is entry:
            self._entries[name] = self._entries.pop(name)

    def pop(self, name: str) -> T | None:
        """Remove a session and return it."""
        entry = self._entries.pop(name, None)
        return None if entry is None else entry.value

    def find_idle(self, idle_s: float = 0.0) -> str | None:
        """Return the name of a session that was unused for so long."""
        latest = time.monotonic() - idle_s
        return next((name for name, one in self._entries.items() if not one.users and one.last_used <= latest), None)

    def find_expired(self) -> str | None:
        """Return the name of one that has expired. One at a time: while it is closed, another may be used again."""
        return self.find_idle(self._idle_timeout_s)


class ExpiringSessions(Generic[T]):
    """Sessions on an event loop. `close` is called with one that ends, or that was unused for `idle_timeout_s`.

    `not_found` is what a request is answered that names none; `exclusive` lets one request at a time use a session.
    """

    def __init__(
        self,
        close: Callable[[T], Awaitable[None]],
        *,
        not_found: str,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        max_sessions: int = MAX_SESSIONS,
        exclusive: bool = True,
    ) -> None:
        self._close, self._not_found, self._exclusive = close, not_found, exclusive
        self._idle_timeout_s, self._max_sessions = idle_timeout_s, max_sessions
        self._slots = asyncio.Semaphore(max_sessions)
        self._table = SessionTable[T](idle_timeout_s)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[T]:
        return (self.get(name) for name in self._table)

    @property
    def full(self) -> bool:
        """Whether `open` would wait."""
        return self._slots.locked()

    async def open(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Make a session and add it; waits for a slot, for longer than an unused session can keep one."""
        try:
            async with asyncio.timeout(2 * self._idle_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise RolloutFailed(
                "environment_error", "open", f"{self._max_sessions} sessions are open already"
            ) from None
        try:
            session = await make()
        except BaseException:
            self._slots.release()
            raise
        return self._table.add(name, session).value

    def get(self, name: str) -> T:
        """Return the session of a name, which does not count as a use; NoSession if there is none."""
        return self._get_entry(name).value

    def _get_entry(self, name: str) -> SessionEntry[T]:
        entry = self._table.get(name)
        if entry is None:
            raise NoSession(self._not_found)
        return entry

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[T]:
        """Use the session of a name for one request; NoSession if there is none, or none any more."""
        entry = self._get_entry(name)
        entry.users += 1
        try:
            async with entry.lock if self._exclusive else nullcontext():
                if self._table.get(name) is not entry:  # it ended while this request waited
                    raise NoSession(self._not_found)
                yield entry.value
        finally:
            self._table.end_use(name, entry)

    async def end(self, name: str) -> None:
        """Close a session, if it is there."""
        session = self._table.pop(name)
        if session is None:
            return
        try:
            await self._close(session)
        finally:
            self._slots.release()

    async def sweep(self) -> None:
        """Close sessions that have expired, until cancelled."""
        while True:
            await asyncio.sleep(min(SWEEP_INTERVAL_S, self._idle_timeout_s / 2))
            while (name := self._table.find_expired()) is not None:
                await self.end(name)

    async def cleanup_context(self, _: object) -> AsyncIterator[None]:
        """For aiohttp's `cleanup_ctx`: sweep while the server is up, then close all."""
        sweeping = asyncio.create_task(self.sweep(), name="expiring sessions")
        yield
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await asyncio.gather(*(self.end(name) for name in list(self._table)))
