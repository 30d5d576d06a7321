"""Budgets and delays."""

from __future__ import annotations

import pytest

from rollbook.book.ledger import Past
from rollbook.collect.retry import LONGEST_DELAY_S, delay_s, failures_allowed, note_try
from rollbook.errors import RolloutFailed, UsageError


def test_each_kind_has_its_own_budget() -> None:
    past = Past()
    assert [note_try(past, "model_timeout", {}) for _ in range(4)] == [False, False, False, True]
    assert note_try(past, "verifier_error", {})
    assert note_try(Past(), "model_timeout", {"model_timeout": 1})


def test_delays_grow_are_bounded_and_honour_the_server() -> None:
    error = RolloutFailed("model_unavailable", "model", "x")
    delays = [delay_s(error, Past(tries={"model_unavailable": n}), roll=1.0) for n in range(1, 12)]
    assert delays == sorted(delays)
    assert delays[0] == 0.5
    assert delays[-1] == LONGEST_DELAY_S
    asked = RolloutFailed("model_unavailable", "model", "x", retry_after_s=17.0)
    assert delay_s(asked, Past(tries={"model_unavailable": 1})) == 17.0
    assert delay_s(RolloutFailed("verifier_timeout", "verify", "x"), Past(tries={"verifier_timeout": 1})) == 0


@pytest.mark.parametrize(("rule", "allowed"), [("1%", 2.0), ("5", 5.0), ("0", 0.0), (None, float("inf"))])
def test_max_failures(rule: str | None, allowed: float) -> None:
    assert failures_allowed(rule, 200) == allowed


@pytest.mark.parametrize("rule", ["few", "-1", "nan", "1%%"])
def test_nonsense_is_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="max-failures"):
        failures_allowed(rule, 200)
