"""Sessions that HTTP clients hold: a bounded number, one request at a time each, closed when nobody uses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from rollbook.errors import RolloutFailed, UsageError

T = TypeVar("T")

IDLE_TIMEOUT_S = 3600.0
SWEEP_INTERVAL_S = 5.0
MAX_SESSIONS = 4096


class NoSession(UsageError):
    """The request is about no session that is open."""


class SessionEntry(Generic[T]):
    """One thing that is held, for one request at a time."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.lock = asyncio.Lock()
        self.last_used = time.monotonic()


class ExpiringSessions(Generic[T]):
    """What is held, by the name of its session; `close` lets go of one, when it ends or nobody asks any more."""

    def __init__(
        self,
        close: Callable[[T], Awaitable[None]],
        *,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self._close, self._idle_timeout_s, self._max_sessions = close, idle_timeout_s, max_sessions
        self._slots = asyncio.Semaphore(max_sessions)
        self._entries: dict[str, SessionEntry[T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def open(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Make one and hold it; waits for a place, for longer than an unused one can be held."""
        try:
            async with asyncio.timeout(2 * self._idle_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise RolloutFailed(
                "environment_error", "open", f"{self._max_sessions} sessions are open already"
            ) from None
        try:
            held = await make()
        except BaseException:
            self._slots.release()
            raise
        self._entries[name] = SessionEntry(held)
        return held

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[T]:
        """The one of a name, for one request; NoSession if there is none, or none any more."""
        lease = self._get(name)
        async with lease.lock:
            if self._entries.get(name) is not lease:  # it ended while this request waited
                raise self._not_found()
            try:
                yield lease.value
            finally:
                lease.last_used = time.monotonic()

    def _get(self, name: str) -> SessionEntry[T]:
        lease = self._entries.get(name)
        if lease is None:
            raise self._not_found()
        return lease

    def _not_found(self) -> NoSession:
        how = f"POST /seed_session first; one that nobody uses for {self._idle_timeout_s:g} s ends"
        return NoSession(f"no session: {how}")

    async def end(self, name: str) -> None:
        """Let go of one, if it is there."""
        lease = self._entries.pop(name, None)
        if lease is None:
            return
        try:
            await self._close(lease.value)
        finally:
            self._slots.release()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_INTERVAL_S, self._idle_timeout_s / 2))
            late = time.monotonic() - self._idle_timeout_s
            for name, one in list(self._entries.items()):
                if one.last_used < late and not one.lock.locked():  # now, not when the first of them was
                    await self.end(name)

    async def cleanup_context(self, _: object) -> AsyncIterator[None]:
        """For aiohttp: swept while the server is up, all let go of when it goes."""
        sweeping = asyncio.create_task(self._sweep(), name="leases")
        yield
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await asyncio.gather(*(self.end(name) for name in list(self._entries)))
