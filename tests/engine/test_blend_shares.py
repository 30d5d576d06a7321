"""Shares of a blend's tasks."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rollbook.engine.blends import split_by_weight

WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)


@given(st.integers(1, 10**6), WEIGHTS)
def test_shares_add_up_and_none_is_off_by_a_whole_task(total: int, weights: list[float]) -> None:
    found = split_by_weight(total, weights)
    assert sum(found) == total
    whole = sum(map(Fraction, weights))
    assert all(abs(share - Fraction(w) * total / whole) < 1 for share, w in zip(found, weights, strict=True))


@given(st.integers(1, 1000), WEIGHTS)
def test_who_weighs_more_gets_no_less(total: int, weights: list[float]) -> None:
    ordered = sorted(weights, reverse=True)
    found = split_by_weight(total, ordered)
    assert found == sorted(found, reverse=True)
