"""What clients hold over HTTP: let go of when nobody asks any more, and only then."""

from __future__ import annotations

import asyncio
import math

from rollbook.processes.expiring_sessions import ExpiringSessions


def test_one_that_is_asked_for_while_another_is_let_go_of_is_kept() -> None:
    async def go() -> None:
        closing, asked, closed = asyncio.Event(), asyncio.Event(), []

        async def close(name: str) -> None:
            closed.append(name)
            closing.set()
            await asked.wait()

        async def make(name: str) -> str:
            return name

        leases = ExpiringSessions[str](close, not_found="gone", idle_timeout_s=0.1)
        for name in ("a", "b"):
            await leases.open(name, lambda name=name: make(name))  # type: ignore[misc]
            leases._table._entries[name].last_used = -math.inf
        kept = leases.cleanup_context(None)
        await anext(kept)
        await closing.wait()
        async with leases.use("b") as held:
            asked.set()
            await asyncio.sleep(0.1)
            assert (held, closed) == ("b", ["a"])
        await anext(kept, None)
        assert closed == ["a", "b"]

    asyncio.run(go())
