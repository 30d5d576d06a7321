"""The bytes that the requests of one rollout may have in memory: an agent decides how many it sends, and how slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

MAX_BODY_BYTES_AT_ONCE = 64 << 20
"""Bytes that the calls of one rollout may have together, each from its first byte to its answer; further ones wait."""


class BodyBudget:
    """Admits bodies in the order in which they come, while there is room for them."""

    def __init__(self, total: int = MAX_BODY_BYTES_AT_ONCE) -> None:
        self._free = total
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[Callable[[int], None]]:
        """Wait for room for `size` bytes and hold it; yields a function to call when the body has fewer."""
        await self._take(size)

        def shrink(to: int) -> None:
            nonlocal size
            self._release(size - to)
            size = to

        try:
            yield shrink
        finally:
            self._release(size)

    async def _take(self, size: int) -> None:
        async with self._turn:
            while self._free < size:
                self._released.clear()
                await self._released.wait()
            self._free -= size

    def _release(self, size: int) -> None:
        self._free += size
        self._released.set()
