from __future__ import annotations

from typing import Any

import pytest

from rollbook.sandbox.outputs import Rule, same_value


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("a\r\nb", "a\nb"),
        ("a\nb", "a \nb\n\n"),
        ("1.0", "1"),
        ("1 2", "1   2"),
        ("", "\n"),
        ("0.10", ".1"),
        ("x", "x"),
        ("1e3", "1000"),
    ],
)
def test_white_space_at_the_ends_and_the_way_a_number_is_written_do_not_count(expected: str, printed: str) -> None:
    assert Rule().same(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("a\nb", "a b"),
        ("a", "A"),
        ("0.1", "0.10000001"),
        ("1", ""),
        ("a\n\nb", "a\nb"),
        ("nan", "NaN"),
        ("1 2", "12"),
        ("1000", "1_000"),
        ("12", "\uff11\uff12"),
        ("12", "\u0661\u0662"),
        ("inf", "Infinity"),
        ("-inf", "-Infinity"),
        ("1", "1e"),
        ("1\n2", "1\x0b2"),
        ("1\n2", "1\u20282"),
        ("1 2", "1\u30002"),
        ("0101", "101"),
        ("7", "007"),
        ("1000000007", "1000000006"),
        ("0", "."),
        ("1", "0x1"),
        ("1e999999999999999999999", "1e9999999999999999999999"),
    ],
)
def test_everything_else_does(expected: str, printed: str) -> None:
    assert not Rule().same(expected, printed)


def test_rules_can_be_stricter_or_looser() -> None:
    assert not Rule("exact").same("a", "a\n")
    assert Rule("words").same("a b\nc", "a\nb c")
    assert Rule(tolerance=1e-6).same("1000000", "1000000.5")
    assert not Rule(tolerance=1e-6).same("1000000", "1000002")
    assert not Rule(tolerance=1e-6).same("1000000007", "1000000006"), "two integers"
    assert Rule(case=False).same("YES", "yes")
    assert not Rule(tolerance=1e-6).same("1e400", "2e400"), "too large for a float, and not the same"
    assert not Rule(tolerance=1e-6).same("1000.0", "1_000.0")


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ([1, 2], (1, 2)),
        (1, 1.0),
        (0.1 + 0.2, 0.3),
        (0.0, 1.2e-16),
        (3, 3.0000000000001),
        ({"1": [2]}, {1: (2,)}),
        (None, None),
        ("a", "a"),
        (True, True),
        (10**400, 10**400),
        ([[]], [()]),
        (float("nan"), float("nan")),
    ],
)
def test_values_are_the_same_as_their_json(expected: Any, value: Any) -> None:
    assert same_value(expected, value)


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (1, True),
        (0, False),
        (None, 0),
        ([1], [1, 2]),
        ("1", 1),
        (1, 1.1),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"1": 1}, {1: 1, "1": 1}),
        (10**400, 1.5),
        ([1], {1}),
        (1000000007, 1000000006),
        (1000000007, 1000000006.0),
        (500000003, 500000003.5),
        (10**18, 10**18 + 1),
        (1e-10, 0),
        (1e-10, 0.0),
        (float("inf"), 1e308),
        (float("nan"), 0.0),
        (0, float("nan")),
        ("one", "two"),
        (True, False),
    ],
)
def test_and_nothing_else_is(expected: Any, value: Any) -> None:
    assert not same_value(expected, value)
