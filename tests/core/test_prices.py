"""Prices as `--price` gives them, and what tokens cost."""

from __future__ import annotations

import pytest

from rollbook.core import Price, TokenCounts, describe_cached, format_cost, parse_price
from rollbook.errors import UsageError


def test_prompts_answers_and_cached_prompts_have_prices_of_their_own() -> None:
    price = parse_price("in=2, out=10, cached=0.5")
    assert price == Price(2.0, 10.0, 0.5)
    assert price.cost(TokenCounts(prompt=1_000_000, cached=500_000, completion=100_000)) == 2.25


def test_cached_tokens_cost_as_much_as_others_unless_it_is_said() -> None:
    assert parse_price("out=10,in=2") == Price(2.0, 10.0, 2.0)


def test_more_cached_tokens_than_the_prompt_has_cost_no_more_than_the_prompt() -> None:
    assert Price(2.0, 10.0, 1.0).cost(TokenCounts(prompt=1_000_000, cached=3_000_000)) == 1.0


def test_tokens_may_cost_nothing() -> None:
    assert parse_price("in=0,out=0").cost(TokenCounts(prompt=5, completion=5)) == 0.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "write it as --price in="),
        ("3", "write it as --price in="),
        ("in=1,out=2,of=3", "write it as --price in="),
        ("in=1,out=2,in=3", "write it as --price in="),
        ("in=1", "in and out are both needed"),
        ("out=1,cached=1", "in and out are both needed"),
        ("in=,out=1", "nothing is not a price"),
        ("in=-1,out=1", "-1 is not a price"),
        ("in=inf,out=1", "inf is not a price"),
        ("in=nan,out=1", "nan is not a price"),
        ("in=1$,out=1", "1$ is not a price"),
    ],
)
def test_a_price_that_cannot_be_read_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_price(text)
    assert str(caught.value).startswith(f"--price {text}: {reason}")


def test_small_costs_are_shown_with_more_digits() -> None:
    assert [format_cost(cost) for cost in (12.3456, 1.0, 0.99994, 0.0)] == ["12.35", "1.00", "0.9999", "0.0000"]


def test_the_share_of_cached_tokens_is_shown_in_percent() -> None:
    assert describe_cached(3, 4) == "75% of the prompt tokens cached"
    assert describe_cached(1, 1) == "100% of the prompt tokens cached"
    assert describe_cached(0, 0) == "0% of the prompt tokens cached"
