"""What a run costs while it is in progress, and the cost at which it is stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book
from rollbook.book.journal import Journal, JournalEntry
from rollbook.core import (
    EnvironmentSpec,
    Limits,
    Manifest,
    ModelSpec,
    RoleCall,
    RoleSettings,
    RoleSpec,
    Sampling,
    Settings,
    Terms,
)
from rollbook.engine import costs
from rollbook.engine.costs import CostMeter, describe_unpriced, estimate_cost, measure_costs
from rollbook.environments import RunRoles
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


def meter_of(book: Book, expected_cost: float | None = None, **settings: object) -> CostMeter:
    return CostMeter(book.path, Settings(price=PRICE, **settings), "w0", expected_cost)  # type: ignore[arg-type]


def test_what_this_worker_spends_counts_at_once_beside_what_others_have_written(book: Book) -> None:
    asyncio.run(play(book, 1))
    asyncio.run(play(book, 0))  # in the journal of this worker, which counts it itself
    meter = meter_of(book)
    meter.read()
    assert meter.cost == 1.0
    rollout = scored(book, 0, 0)
    rollout.role_calls = [RoleCall("judge", 0, 1, "5", cost=0.25), RoleCall("judge", 1, 1, "5")]
    meter.record(rollout)
    meter.record(scored(book, 0, 0))
    assert meter.cost == 3.25


def test_cached_tokens_of_a_rollout_have_their_price_and_are_at_most_those_of_the_prompt(book: Book) -> None:
    rollout = scored(book, 0, 0)
    (turn,) = rollout.turns
    for cached, cost in ((None, 1.0), (2, 0.8), (9, 0.7), (-9, 1.0)):
        meter = CostMeter(book.path, Settings(price="in=100000,out=350000,cached=0"))
        rollout.turns = [msgspec.structs.replace(turn, cached_tokens=cached)]
        meter.record(rollout)
        assert meter.cost == pytest.approx(cost)


def test_only_roles_with_a_price_cost_something_where_the_model_has_none(book: Book) -> None:
    meter = CostMeter(book.path, Settings(roles={"judge": RoleSettings(price=PRICE)}))
    rollout = scored(book, 0, 0)
    rollout.role_calls = [RoleCall("judge", 0, 1, "5", cost=0.25)]
    meter.record(rollout)
    assert meter.cost == 0.25
    free = CostMeter(book.path, Settings())
    free.record(rollout)
    assert (free.cost, free.is_priced, meter.is_priced) == (None, False, True)


def test_as_many_rollouts_start_as_the_limit_surely_allows(book: Book) -> None:
    meter = meter_of(book, 1.0, max_cost=3.0)
    assert [meter.admits(running) for running in range(4)] == [True, True, True, False]
    two = meter_of(book, 1.0, max_cost=4.0, workers=2)
    assert [two.admits(running) for running in range(3)] == [True, True, False]
    assert meter_of(book, 1.0).admits(10**6)


def test_before_anything_is_known_rollouts_run_one_by_one_until_the_limit_is_passed(book: Book) -> None:
    meter = meter_of(book, None, max_cost=1.0)
    assert [meter.admits(running) for running in range(2)] == [True, False]
    meter.record(scored(book, 0, 0))
    assert meter.admits(0)
    meter.record(scored(book, 0, 0))
    assert not meter.admits(0)
    assert meter.stop_reason


def test_the_dearest_rollout_so_far_is_expected_and_not_the_estimate(book: Book) -> None:
    meter = meter_of(book, 100.0, max_cost=10.0)
    assert not meter.admits(1)
    meter.record(scored(book, 0, 0))
    assert [meter.admits(running) for running in (8, 9)] == [True, False]  # 1 is spent, each may cost 1
    dear, cheap = scored(book, 0, 0), scored(book, 0, 0)
    dear.turns = dear.turns * 2
    meter.record(dear)
    meter.record(cheap)  # 4 are spent, each may cost 2
    assert [meter.admits(running) for running in (2, 3)] == [True, False]


def manifest_of(sampling: Sampling, *own: Sampling) -> Manifest:
    terms = [Terms("", 1, each, Limits(), "native") for each in own] or [None]
    environments = {f"e{n}": EnvironmentSpec("x", "x:Y", terms=each) for n, each in enumerate(terms)}
    return Manifest(2, "r", 0.0, environments, ModelSpec("m"), sampling, 1, 0, Limits(), {})


def test_the_cost_of_an_answer_of_the_most_tokens_is_expected() -> None:
    priced, omitted = Settings(price="in=1,out=1000000"), Sampling(max_tokens=9, extra={"max_tokens": None})
    assert estimate_cost(manifest_of(Sampling(max_tokens=7)), priced) == 7.0
    assert (
        estimate_cost(manifest_of(Sampling(max_tokens=7), Sampling(max_tokens=2), Sampling(max_tokens=3)), priced) == 3
    )
    assert estimate_cost(manifest_of(Sampling(), omitted, Sampling(max_tokens=3)), priced) == 3
    assert estimate_cost(manifest_of(omitted), priced) is None
    assert estimate_cost(manifest_of(Sampling()), Settings()) is None


def test_roles_that_a_limit_does_not_count_are_named() -> None:
    others = {"user": RoleSpec(ModelSpec("m")), "rival": RoleSpec(ModelSpec("m", "scripted"))}
    roles = RunRoles(ModelSpec("j"), others)
    limited = Settings(max_cost=1.0)
    assert describe_unpriced(roles, limited) == (
        "--max-cost counts no calls of the role judge and user: it has no price; give --role judge.price=in=1,out=4"
    )
    paid = {"judge": RoleSettings(price=PRICE), "user": RoleSettings(price=PRICE)}
    assert describe_unpriced(roles, Settings(max_cost=1.0, roles=paid)) == ""
    assert describe_unpriced(RunRoles(None, {}), limited) == ""
    assert describe_unpriced(roles, Settings()) == ""


def test_costs_are_read_once_in_a_while(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "READ_EVERY_S", 0.1)
    reads: list[None] = []
    monkeypatch.setattr(CostMeter, "read", lambda _: reads.append(None))

    async def main() -> None:
        async with measure_costs(book.path, Settings(price=PRICE)):
            await asyncio.sleep(0.35)

    asyncio.run(main())
    assert 2 <= len(reads) <= 4
