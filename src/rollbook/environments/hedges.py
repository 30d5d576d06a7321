"""Hedges: answers that name more than one value, none at all, or what a number is not."""

from __future__ import annotations

import re

_ALTERNATIVE = re.compile(
    r"\bor\b|\bversus\b|\bvs\b|\\(?:vee|lor|rightarrow|Rightarrow|to|implies|longrightarrow)(?![A-Za-z])|[→⇒∨]"
    r"|(?<=\d)\s*(?:\||\\mid(?![A-Za-z]))\s*(?=-?\d)",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r",|\\(?:pm|mp|cup)(?![A-Za-z])|[±∪]")
_UNFINISHED = re.compile(
    r"^\s*(?:\\(?:neq?|not|neg|lnot)(?![A-Za-z])|[≠¬])|(?:\\(?:times|cdot|div)|(?<!\\)[-+*/^=<>×·÷])\s*$"
    r"|(?<!\\frac)(?<!\\frac )(?<![\d.])\d+\s+\d|\d\s*(?:\.\.+|…|\\[lc]?dots)\s*\d"
    r"|\d\s+(?:squared|cubed|factorial)\b"
)
_DOUBT = re.compile(
    r"(?<!\\)\b(?:not|never|nor|neither|either|but|except|less|fewer|more|greater|smaller|larger|least|most|than|half"
    r"|third|quarter|twice|double|triple|thrice|times|root|square of|cube of|logarithm|factorial|between|one of|over"
    r"|under|above|below|wrong|incorrect|maybe|perhaps)\b|\bn['’]?t\b|n['’]t\b|\?\s*\w",
    re.IGNORECASE,
)
_MORE_TO_COME = re.compile(
    r"\W*(?:or|and|to|versus|vs|through)\W*\d|\s*\?\s*\w|%?\s*(?:of\W*\d|squared|cubed|factorial|times|plus|minus|mod)\b"
    r"|\s*(?:dozen|hundred|thousand|million|billion|trillion|(?:less|more|fewer|greater) than)\b",
    re.IGNORECASE,
)
_REJECTED = re.compile(
    r"(?:\b\d[\d.,]*\W{0,9}(?:or|versus|vs)|(?:\bnot|n['’]t|\bcannot)(?: be)?|\bthan"
    r"|\bbetween\W{0,9}[\d.,]+\W{0,9}and)\W{0,9}$",
    re.IGNORECASE,
)

MOST = 4
"""More alternatives than these are no answer."""


def alternatives(text: str) -> list[str]:
    r"""The values that a text offers for one: those on both sides of "or", of an arrow, of a sign of equality.

    >>> alternatives(r"4 \text{ or } 5"), alternatives("2+2=4"), alternatives("x=4")
    (['4', '5'], ['2+2', '4'], ['x=4'])
    """
    words = re.sub(r"\\(?:text|textbf|textit|mathrm|mbox)\s*\{([^{}]*)\}", r" \1 ", text)
    parts = _ALTERNATIVE.split(words)
    if len(parts) == 1:
        sides = text.split("=")
        return [text] if any(re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", side)) for side in sides) else sides
    return [part.strip().strip("()$ ,").strip() for part in parts]


def is_list(text: str) -> bool:
    """Whether a text may well hold several values."""
    return bool(_SEVERAL.search(text) or _ALTERNATIVE.search(text))


def unfinished(text: str) -> bool:
    r"""Whether a text is no value, though a number stands in it: an operation begun, a negation, numbers side by side.

    >>> [unfinished(text) for text in ("4+", r"\neq 4", "4 5", r"\frac 1 2", "4")]
    [True, True, True, False, False]
    """
    return bool(_UNFINISHED.search(text))


def doubted(before: str, after: str = "") -> bool:
    """Whether the words around a number say that it is not, or not alone, the answer."""
    return bool(_DOUBT.search(before[-200:]) or goes_on(after) or rejected(before))


def goes_on(after: str) -> bool:
    """Whether what follows a number makes another one of it, or names a second."""
    return bool(_MORE_TO_COME.match(after[:40]))


def rejected(before: str) -> str | None:
    """The words right before a number that say it is not the answer, or one of two.

    >>> rejected("It is 17 or "), rejected("It can't be "), rejected("Not 20, but ")
    ('17 or ', "n't be ", None)
    """
    found = _REJECTED.search(before[-60:])
    return found[0] if found else None
