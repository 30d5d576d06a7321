"""Sessions for those who come over HTTP: each has a name nobody can guess, and ends when nobody has asked for long."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping

import msgspec

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Result, Sandbox
from rollbook.sandbox.session import Session

LEASE_S = 900.0
SWEEP_S = 5.0


class Lease(msgspec.Struct):
    """An open session, and since when nobody has used it."""

    session: Session
    since: float
    busy: int = 0


class Sessions:
    """The open ones by name."""

    def __init__(self, box: Sandbox, lease_s: float = LEASE_S) -> None:
        self._box, self._lease_s = box, lease_s
        self._open: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def begin(self, snapshot: bool, limits: Limits, files: Mapping[str, bytes]) -> str:
        """A new one; its name."""
        session = await self._box.session(snapshot, limits, files).__aenter__()
        name = secrets.token_urlsafe(16)
        self._open[name] = Lease(session, time.monotonic())
        return name

    async def run(self, name: str, code: str, limits: Limits | None) -> Result:
        """One turn."""
        lease = self._open.get(name)
        if lease is None:
            raise UsageError(f"no session has that name: it has ended, or nobody used it for {self._lease_s:g} s")
        lease.busy += 1
        try:
            return await lease.session.run(code, limits)
        finally:
            lease.busy -= 1
            lease.since = time.monotonic()

    def limits(self, name: str) -> Limits:
        """What a turn of it may use unless it is told otherwise."""
        lease = self._open.get(name)
        return lease.session.limits if lease else self._box.limits

    async def end(self, name: str) -> None:
        """Close it, if it is open."""
        lease = self._open.pop(name, None)
        if lease:
            await lease.session.__aexit__(None, None, None)

    async def sweep(self) -> None:
        """Close what nobody uses, for as long as this runs."""
        while True:
            await asyncio.sleep(min(SWEEP_S, self._lease_s / 2))
            late = time.monotonic() - self._lease_s
            for name, lease in list(self._open.items()):
                if lease.since < late and not lease.busy:  # now, not when the first of them was
                    await self.end(name)

    async def kept(self, _: object) -> AsyncIterator[None]:
        """For aiohttp: swept while the server is up, closed when it goes."""
        sweeping = asyncio.create_task(self.sweep())
        yield
        sweeping.cancel()
        for name in list(self._open):
            await self.end(name)
