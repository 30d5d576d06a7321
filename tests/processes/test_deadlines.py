"""Deadlines that are looked at together end what they should, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from rollbook.processes import event_loop
from rollbook.processes.event_loop import EXACT_DEADLINE_S, Deadline, timeout_after


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "DEADLINE_CHECK_S", 0.02)


def test_short_ones_are_exact_and_long_ones_are_looked_at_together() -> None:
    async def main() -> None:
        assert isinstance(timeout_after(EXACT_DEADLINE_S - 1), asyncio.Timeout)
        assert isinstance(timeout_after(EXACT_DEADLINE_S), Deadline)

    asyncio.run(main())


def test_what_takes_longer_is_ended_and_what_does_not_is_left_alone() -> None:
    async def one(takes: float, allowed: float) -> str:
        try:
            async with Deadline(allowed) as limit:
                await asyncio.sleep(takes)
        except TimeoutError:
            assert limit.expired()
            task = asyncio.current_task()
            assert task
            assert task.cancelling() == 0, "who catches it is not cancelled any more"
            return "late"
        assert not limit.expired()
        return "in time"

    async def main() -> list[str]:
        pairs = [(0.0, 30.0), (30.0, 0.05), (0.0, 0.05), (30.0, 0.1)]
        return await asyncio.gather(*(one(*pair) for pair in pairs))

    assert asyncio.run(main()) == ["in time", "late", "in time", "late"]


def test_a_cancellation_by_others_stays_one() -> None:
    async def main() -> str:
        async def waits() -> None:
            async with Deadline(600):
                await asyncio.sleep(600)

        task = asyncio.create_task(waits())
        await asyncio.sleep(0.05)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "ended"

    assert asyncio.run(main()) == "cancelled"


def test_an_error_inside_is_raised_as_it_is_though_it_was_late() -> None:
    async def main() -> None:
        async with Deadline(0.01):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise LookupError from None

    with pytest.raises(LookupError):
        asyncio.run(main())


def test_one_inside_the_other_each_ends_its_own() -> None:
    async def main() -> str:
        try:
            async with Deadline(600):
                try:
                    async with Deadline(0.05):
                        await asyncio.sleep(60)
                except TimeoutError:
                    await asyncio.sleep(0)
                    return "the inner one"
        except TimeoutError:
            return "the outer one"
        return "none"

    assert asyncio.run(main()) == "the inner one"


def test_every_loop_has_a_look_of_its_own() -> None:
    async def late() -> bool:
        limit = Deadline(0.05)
        try:
            async with limit:
                await asyncio.sleep(60)
        except TimeoutError:
            return limit.expired()
        return False

    assert [asyncio.run(late()) for _ in range(3)] == [True, True, True]
