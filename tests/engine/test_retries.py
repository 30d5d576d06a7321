"""Budgets and delays."""

from __future__ import annotations

import pytest

from rollbook.book import KeyHistory
from rollbook.engine.retries import MAX_DELAY_S, parse_max_failures, record_failure, retry_delay_s
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
