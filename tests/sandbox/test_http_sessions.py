"""Sessions of those who come over HTTP, with a real sandbox."""

from __future__ import annotations

import asyncio
import math

import pytest

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox.server import SandboxSessions


def test_a_session_goes_on_by_its_name_and_ends_when_told() -> None:
    async def go() -> None:
        async with Sandbox(size=1) as box:
            sessions = SandboxSessions(box)
            one, two = [await sessions.open(False, Limits(), {}) for _ in range(2)]
            await sessions.run(one, "x = 1", {})
            await sessions.run(two, "x = 2", {})
            assert [(await sessions.run(name, "x", {})).value for name in (one, two)] == ["1", "2"]
            await sessions.table.end(one)
            await sessions.table.end(one)
            with pytest.raises(UsageError, match="no session has that name"):
                await sessions.run(one, "x", {})
            assert len(sessions.table) == 1
            await sessions.table.end(two)

    asyncio.run(go())


def test_a_session_that_nobody_uses_ends_and_one_at_work_does_not() -> None:
    async def go() -> None:
        async with Sandbox(size=2) as box:
            sessions = SandboxSessions(box, idle_timeout_s=0.2)
            idle, busy = [await sessions.open(False, Limits(), {}) for _ in range(2)]
            sweeping = asyncio.create_task(sessions.table.sweep())
            worked = await sessions.run(busy, "import time; time.sleep(0.8)", {})
            assert worked.status == "ok"
            with pytest.raises(UsageError):
                await sessions.run(idle, "1", {})
            sweeping.cancel()
            await sessions.table.end(busy)

    asyncio.run(go())


class Pretended:
    """A sandbox and a session of it whose end takes until it is told."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.ending, self.may_end = asyncio.Event(), asyncio.Event()

    def session(self, *_: object) -> Pretended:
        return self

    async def __aenter__(self) -> Pretended:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ended.append("ended")
        self.ending.set()
        await self.may_end.wait()

    async def run(self, code: str, limits: object) -> int:
        self.may_end.set()
        await asyncio.sleep(0.1)
        return len(self.ended)


def test_a_session_that_is_used_while_another_is_closed_is_not_closed_too() -> None:
    async def go() -> int:
        box = Pretended()
        sessions = SandboxSessions(box, idle_timeout_s=0.1)  # type: ignore[arg-type]
        names = [await sessions.open(False, Limits(), {}) for _ in range(2)]
        for entry in sessions.table._table._entries.values():
            entry.last_used = -math.inf
        sweeping = asyncio.create_task(sessions.table.sweep())
        await box.ending.wait()
        ended: object = await sessions.run(names[1], "1", {})
        sweeping.cancel()
        assert isinstance(ended, int)
        return ended

    assert asyncio.run(go()) == 1


def test_turns_of_one_session_are_accepted_side_by_side() -> None:
    """They wait in the order of the session itself, so that one that was cancelled holds up no other."""

    class Together(Pretended):
        async def run(self, code: str, limits: object) -> int:
            self.ended.append(code)
            while len(self.ended) < 2:
                await asyncio.sleep(0)
            return len(self.ended)

    async def go() -> list[object]:
        sessions = SandboxSessions(Together())  # type: ignore[arg-type]
        name = await sessions.open(False, Limits(), {})
        async with asyncio.timeout(10):
            return list(await asyncio.gather(*(sessions.run(name, code, {}) for code in "ab")))

    assert asyncio.run(go()) == [2, 2]
