"""Sessions of those who come over HTTP, with a real sandbox."""

from __future__ import annotations

import asyncio

import pytest

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Sandbox
from rollbook.wire.sessions import Sessions


def test_a_session_goes_on_by_its_name_and_ends_when_told() -> None:
    async def go() -> None:
        async with Sandbox(size=1) as box:
            sessions = Sessions(box)
            one, two = [await sessions.begin(False, Limits(), {}) for _ in range(2)]
            await sessions.run(one, "x = 1", None)
            await sessions.run(two, "x = 2", None)
            assert [(await sessions.run(name, "x", None)).value for name in (one, two)] == ["1", "2"]
            await sessions.end(one)
            await sessions.end(one)
            with pytest.raises(UsageError, match="no session has that name"):
                await sessions.run(one, "x", None)
            assert len(sessions) == 1
            await sessions.end(two)

    asyncio.run(go())


def test_a_session_that_nobody_uses_ends_and_one_at_work_does_not() -> None:
    async def go() -> None:
        async with Sandbox(size=2) as box:
            sessions = Sessions(box, lease_s=0.2)
            idle, busy = [await sessions.begin(False, Limits(), {}) for _ in range(2)]
            sweeping = asyncio.create_task(sessions.sweep())
            worked = await sessions.run(busy, "import time; time.sleep(0.8)", None)
            assert worked.status == "ok"
            with pytest.raises(UsageError):
                await sessions.run(idle, "1", None)
            sweeping.cancel()
            await sessions.end(busy)

    asyncio.run(go())
