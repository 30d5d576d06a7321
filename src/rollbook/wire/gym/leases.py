"""Things that clients hold over HTTP: so many at a time, and each only for as long as somebody asks for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from rollbook.errors import RolloutFailed, UsageError

T = TypeVar("T")

LEASE_S = 3600.0
SWEEP_S = 5.0
MOST = 4096


class NoSession(UsageError):
    """The request is about no session that is open."""


class Lease(Generic[T]):
    """One thing that is held, for one request at a time."""

    def __init__(self, held: T) -> None:
        self.held = held
        self.lock = asyncio.Lock()
        self.since = time.monotonic()


class Leases(Generic[T]):
    """What is held, by the name of its session; `close` lets go of one, when it ends or nobody asks any more."""

    def __init__(self, close: Callable[[T], Awaitable[None]], *, lease_s: float = LEASE_S, most: int = MOST) -> None:
        self._close, self._lease_s, self._most = close, lease_s, most
        self._places = asyncio.Semaphore(most)
        self._leases: dict[str, Lease[T]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    async def begin(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Make one and hold it; waits for a place, for longer than an unused one can be held."""
        try:
            async with asyncio.timeout(2 * self._lease_s):
                await self._places.acquire()
        except TimeoutError:
            raise RolloutFailed("environment_error", "open", f"{self._most} sessions are open already") from None
        try:
            held = await make()
        except BaseException:
            self._places.release()
            raise
        self._leases[name] = Lease(held)
        return held

    @asynccontextmanager
    async def used(self, name: str) -> AsyncIterator[T]:
        """The one of a name, for one request; NoSession if there is none, or none any more."""
        lease = self._found(name)
        async with lease.lock:
            if self._leases.get(name) is not lease:  # it ended while this request waited
                raise self._none()
            try:
                yield lease.held
            finally:
                lease.since = time.monotonic()

    def _found(self, name: str) -> Lease[T]:
        lease = self._leases.get(name)
        if lease is None:
            raise self._none()
        return lease

    def _none(self) -> NoSession:
        how = f"POST /seed_session first; one that nobody uses for {self._lease_s:g} s ends"
        return NoSession(f"no session: {how}")

    async def end(self, name: str) -> None:
        """Let go of one, if it is there."""
        lease = self._leases.pop(name, None)
        if lease is None:
            return
        try:
            await self._close(lease.held)
        finally:
            self._places.release()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_S, self._lease_s / 2))
            late = time.monotonic() - self._lease_s
            for name, one in list(self._leases.items()):
                if one.since < late and not one.lock.locked():  # now, not when the first of them was
                    await self.end(name)

    async def kept(self, _: object) -> AsyncIterator[None]:
        """For aiohttp: swept while the server is up, all let go of when it goes."""
        sweeping = asyncio.create_task(self._sweep(), name="leases")
        yield
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await asyncio.gather(*(self.end(name) for name in list(self._leases)))
