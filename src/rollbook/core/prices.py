"""What tokens cost: the price of a model as `--price` gives it, and counts of tokens."""

from __future__ import annotations

import math

import msgspec

from rollbook.errors import UsageError

PER_TOKENS = 1_000_000
PRICE_EXAMPLE = "--price in=2.5,out=10,cached=1.25, each for a million tokens"


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens of prompts and of answers; `cached` are those of the prompts that the server had cached."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class Price(msgspec.Struct, frozen=True):
    """The price of a million tokens: of prompts, of answers, and of prompts that the server had cached."""

    prompt: float
    completion: float
    cached: float

    def cost(self, tokens: TokenCounts) -> float:
        """Return what tokens cost.

        >>> Price(2.0, 10.0, 0.5).cost(TokenCounts(prompt=1_000_000, cached=500_000, completion=100_000))
        2.25
        """
        cached = min(tokens.cached, tokens.prompt)
        total = (tokens.prompt - cached) * self.prompt + cached * self.cached + tokens.completion * self.completion
        return total / PER_TOKENS


def parse_price(text: str) -> Price:
    """Parse `--price`; cached tokens cost as much as others unless `cached` says otherwise.

    >>> parse_price("in=2.5,out=10")
    Price(prompt=2.5, completion=10.0, cached=2.5)
    """
    values: dict[str, float] = {}
    for pair in text.split(","):
        name, _, number = pair.strip().partition("=")
        if name not in ("in", "out", "cached") or name in values:
            raise UsageError(f"--price {text}: write it as {PRICE_EXAMPLE}")
        values[name] = _parse_amount(number, text)
    if not {"in", "out"} <= set(values):
        raise UsageError(f"--price {text}: in and out are both needed, as in {PRICE_EXAMPLE}")
    return Price(values["in"], values["out"], values.get("cached", values["in"]))


def _parse_amount(number: str, text: str) -> float:
    try:
        amount = float(number)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise UsageError(f"--price {text}: {number or 'nothing'} is not a price; write it as {PRICE_EXAMPLE}")
    return amount


def describe_cached(cached_tokens: int, prompt_tokens: int) -> str:
    """Return the share of cached tokens in words.

    >>> describe_cached(15, 16)
    '94% of the prompt tokens cached'
    """
    return f"{cached_tokens / max(1, prompt_tokens):.0%} of the prompt tokens cached"


def format_cost(cost: float) -> str:
    """Return a cost as text, in the currency of the price.

    >>> format_cost(12.3456), format_cost(0.01234)
    ('12.35', '0.0123')
    """
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.4f}"
