"""Budgets and delays."""

from __future__ import annotations

import asyncio

import pytest

from rollbook.book import KeyHistory
from rollbook.core import Rollout, Task
from rollbook.engine.retries import (
    MAX_DELAY_S,
    AttemptResult,
    parse_max_failures,
    record_failure,
    retry_delay_s,
    run_until_final,
    wait_for_event,
)
from rollbook.errors import RolloutFailed, UsageError


def test_each_kind_has_its_own_budget() -> None:
    past = KeyHistory()
    assert [record_failure(past, "model_timeout", {}) for _ in range(4)] == [False, False, False, True]
    assert record_failure(past, "verifier_error", {})
    assert record_failure(KeyHistory(), "model_timeout", {"model_timeout": 1})


def test_delays_grow_are_bounded_and_honour_the_server() -> None:
    error = RolloutFailed("model_unavailable", "model", "x")
    delays = [retry_delay_s(error, KeyHistory(tries={"model_unavailable": n}), random_value=1.0) for n in range(1, 12)]
    assert delays == sorted(delays)
    assert delays[0] == 0.5
    assert delays[-1] == MAX_DELAY_S
    asked = RolloutFailed("model_unavailable", "model", "x", retry_after_s=17.0)
    assert retry_delay_s(asked, KeyHistory(tries={"model_unavailable": 1})) == 17.0
    assert (
        retry_delay_s(RolloutFailed("verifier_timeout", "verify", "x"), KeyHistory(tries={"verifier_timeout": 1})) == 0
    )


@pytest.mark.parametrize(("rule", "allowed"), [("1%", 2.0), ("5", 5.0), ("0", 0.0), (None, float("inf"))])
def test_max_failures(rule: str | None, allowed: float) -> None:
    assert parse_max_failures(rule, 200) == allowed


@pytest.mark.parametrize("rule", ["few", "-1", "nan", "1%%"])
def test_nonsense_is_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="max-failures"):
        parse_max_failures(rule, 200)


def test_attempts_end_with_a_score_with_the_budget_or_with_a_drain() -> None:
    async def count_attempts(failing: int, **more: object) -> tuple[int, list[bool]]:
        count, finals = 0, []

        async def run_attempt() -> AttemptResult:
            nonlocal count
            count += 1
            error = RolloutFailed("verifier_timeout", "verify", "x") if count <= failing else None
            return Rollout(task=Task("t", "p"), sample=0, seed=0), error

        async def record(_: Rollout, error: RolloutFailed | None, final: bool) -> None:
            finals.append(final)

        await run_until_final(run_attempt, KeyHistory(), {"verifier_timeout": 3}, record=record, **more)  # type: ignore[arg-type]
        return count, finals

    assert asyncio.run(count_attempts(1)) == (2, [False, True])
    assert asyncio.run(count_attempts(9)) == (3, [False, False, True])
    draining = asyncio.Event()
    draining.set()
    assert asyncio.run(count_attempts(9, draining=draining)) == (1, [False])


@pytest.mark.parametrize(
    ("tries", "chance", "delay"),
    [(1, 0.0, 0.25), (1, 1.0, 0.5), (2, 1.0, 1.0), (3, 0.5, 1.5), (6, 1.0, 16.0), (7, 1.0, 30.0), (7, 0.0, 15.0)],
)
def test_a_delay_doubles_and_is_drawn_from_its_upper_half(tries: int, chance: float, delay: float) -> None:
    error = RolloutFailed("model_unavailable", "model", "x")
    assert retry_delay_s(error, KeyHistory(tries={"model_unavailable": tries}), chance) == delay


def test_an_event_is_waited_for_or_not() -> None:
    async def go() -> None:
        event = asyncio.Event()
        assert await wait_for_event(event, 0.01) is False
        event.set()
        assert await wait_for_event(event, 10) is True

    asyncio.run(go())


def test_a_drain_ends_the_delay_before_the_next_attempt() -> None:
    async def go() -> int:
        draining, attempts = asyncio.Event(), 0

        async def run_attempt() -> AttemptResult:
            nonlocal attempts
            attempts += 1
            asyncio.get_running_loop().call_later(0.05, draining.set)
            asked = RolloutFailed("model_unavailable", "model", "x", retry_after_s=60.0)
            return Rollout(task=Task("t", "p"), sample=0, seed=0), asked

        await asyncio.wait_for(run_until_final(run_attempt, KeyHistory(), {}, draining=draining), 10)
        return attempts

    assert asyncio.run(go()) == 2
