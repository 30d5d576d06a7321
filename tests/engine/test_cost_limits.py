"""What a run costs while it is in progress, and the cost at which it is stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollbook.book import Book
from rollbook.book.journal import Journal, JournalEntry
from rollbook.core import RoleCall, RoleSettings, Settings
from rollbook.engine.costs import CostMeter, measure_costs
from support.books import make_book, scored

PRICE = "in=100000,out=350000"
"""A rollout of support.books has 3 tokens of a prompt and 2 of an answer: it costs 1."""


async def play(book: Book, row: int, role_cost: float | None = None) -> None:
    rollout = scored(book, row, 0)
    rollout.role_calls = [RoleCall("judge", 0, 1, "5", cost=role_cost)]
    journal = Journal(book.path, f"w{row}", lambda _: None)
    journal.start()
    await journal.add(JournalEntry(rollout))
    await journal.close()


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return make_book(tmp_path / "run")


def read_cost(book: Book, settings: Settings) -> tuple[float | None, str]:
    meter = CostMeter(book.path, settings)
    meter.read()
    return meter.cost, meter.stop_reason


def test_without_a_price_there_is_no_cost_and_no_limit(book: Book) -> None:
    asyncio.run(play(book, 0, role_cost=0.5))
    assert read_cost(book, Settings(roles={"judge": RoleSettings()}, max_cost=0.1)) == (None, "")


def test_the_cost_is_that_of_tokens_and_of_priced_roles(book: Book) -> None:
    assert read_cost(book, Settings(price=PRICE)) == (0.0, "")
    asyncio.run(play(book, 0, role_cost=0.5))
    priced = {"judge": RoleSettings(price=PRICE)}
    assert read_cost(book, Settings(price=PRICE, roles=priced)) == (1.5, "")
    assert read_cost(book, Settings(roles=priced)) == (0.5, "")


@pytest.mark.parametrize(
    ("max_cost", "reason"),
    [(1.0, ""), (0.99, "stopped by --max-cost 0.99 at a cost of 1.00: resume with a higher one"), (0.0, "stopped")],
)
def test_a_run_is_stopped_once_it_costs_more_than_is_allowed(book: Book, max_cost: float, reason: str) -> None:
    asyncio.run(play(book, 0))
    cost, found = read_cost(book, Settings(price=PRICE, max_cost=max_cost))
    assert cost == 1.0
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_the_reason_names_the_cost_at_which_it_was_stopped(book: Book) -> None:
    meter = CostMeter(book.path, Settings(price=PRICE, max_cost=0.5))
    for row in (0, 1):
        asyncio.run(play(book, row))
        meter.read()
    assert (meter.cost, "at a cost of 1.00" in meter.stop_reason) == (2.0, True)


def test_the_cost_is_read_again_while_the_run_goes_on_and_not_after_it(book: Book) -> None:
    async def main() -> None:
        await play(book, 0)
        async with measure_costs(book.path, Settings(price=PRICE)) as meter:
            assert meter.cost == 1.0
            await play(book, 1)
            async with asyncio.timeout(30):
                while meter.cost != 2.0:
                    await asyncio.sleep(0.05)
        assert [task for task in asyncio.all_tasks() if task.get_name() == "measure costs"] == []

    asyncio.run(main())


def test_without_a_price_nothing_is_read(book: Book) -> None:
    async def main() -> None:
        await play(book, 0)
        async with measure_costs(book.path, Settings()) as meter:
            assert len(asyncio.all_tasks()) == 1
        assert meter.cost is None

    asyncio.run(main())
