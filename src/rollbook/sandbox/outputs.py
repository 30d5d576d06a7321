"""Compare outputs with the expected ones. The rule is part of a task: the same answer must get the same verdict."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Annotated, Literal, TypeAlias

import msgspec

from rollbook.core import JSON

Tolerance: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Spaces: TypeAlias = Literal["exact", "lines", "words"]
_NUMBER = re.compile(r"[+-]?([0-9]++(\.[0-9]*+)?|\.[0-9]++)([eE][+-]?[0-9]++)?").fullmatch
"""Numbers as programs print them. Other forms that Python accepts (1_000, digits of other scripts, inf) are plain
words. The possessive quantifiers never backtrack over long runs of digits: output may be designed to keep us busy."""
_INTEGER = re.compile(r"[+-]?[0-9]+").fullmatch
_SPACES = " \t\n\r\x0b\x0c"
_words = re.compile(rf"[^{_SPACES}]+").findall
"""White space is ASCII's: spaces of other scripts are ordinary characters."""

LAST_DIGITS, NOISE = 1e-9, 1e-12
"""A tolerance up to LAST_DIGITS is meant for the last digits of floats; near 0 it then counts only as NOISE."""


class Rule(msgspec.Struct, frozen=True):
    """How printed output is compared.

    `spaces`: exact, every byte counts; lines, each line is compared word by word, and white space around its words or
    around the whole output does not count; words, line breaks are white space too. Numbers are compared as numbers, two
    integers as they are written. `tolerance`: how far two numbers may be apart, relative to the larger or absolutely;
    two integers must be equal. `case`: whether A differs from a.
    """

    spaces: Spaces = "lines"
    tolerance: Tolerance = 0.0
    case: bool = True

    def same(self, expected: str, printed: str) -> bool:
        """Return whether the output equals the expected one."""
        if not self.case:
            expected, printed = expected.lower(), printed.lower()
        if expected == printed or self.spaces == "exact":
            return expected == printed
        if self.spaces == "words":
            return self._same_words(_words(expected), _words(printed))
        expected_lines, printed_lines = expected.strip(_SPACES).split("\n"), printed.strip(_SPACES).split("\n")
        return len(expected_lines) == len(printed_lines) and all(map(self._same_line, expected_lines, printed_lines))

    def _same_line(self, one: str, two: str) -> bool:
        return one == two or self._same_words(_words(one), _words(two))

    def _same_words(self, one: list[str], two: list[str]) -> bool:
        return len(one) == len(two) and all(a == b or self._same_number(a, b) for a, b in zip(one, two, strict=True))

    def _same_number(self, one: str, two: str) -> bool:
        if not (_NUMBER(one) and _NUMBER(two)) or (_INTEGER(one) and _INTEGER(two)):
            return False
        try:
            a, b = Decimal(one), Decimal(two)
        except InvalidOperation:  # an exponent beyond all bounds
            return False
        return a == b or are_near(float(a), float(b), self.tolerance)


def are_near(one: float, two: float, tolerance: float, absolute: float | None = None) -> bool:
    """Return whether two numbers are no further apart than allowed."""
    finite = math.isfinite(one) and math.isfinite(two)  # two numbers beyond all floats may be quite different ones
    absolute = tolerance if absolute is None else absolute
    return tolerance > 0 and finite and math.isclose(one, two, rel_tol=tolerance, abs_tol=absolute)


def same_value(expected: JSON, value: JSON, tolerance: float = 1e-9) -> bool:
    """Return whether a value equals the expected one, which came from JSON: a tuple is a list, a key may be a text.

    True is not 1. A float may be `tolerance` apart; where an integer is expected it must also be nearest to that one,
    and two integers must be equal.
    """
    if isinstance(expected, bool) or isinstance(value, bool) or expected is None or value is None:
        return expected is value
    if isinstance(expected, int | float) and isinstance(value, int | float):
        return expected == value or (expected != expected and value != value) or _is_near(expected, value, tolerance)
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(expected) == len(value) and all(
            same_value(a, b, tolerance) for a, b in zip(expected, value, strict=True)
        )
    if isinstance(expected, dict) and isinstance(value, dict):
        by_text = {str(key): item for key, item in value.items()}
        return len(by_text) == len(value) and _are_same_dicts(expected, by_text, tolerance)
    return type(expected) is type(value) and bool(expected == value)


def _is_near(expected: float, value: float, tolerance: float) -> bool:
    if isinstance(expected, int) and isinstance(value, int):
        return False
    try:
        if isinstance(expected, int) and not abs(expected - value) < 0.5:
            return False
        return are_near(float(expected), float(value), tolerance, tolerance if tolerance > LAST_DIGITS else NOISE)
    except OverflowError:
        return False


def _are_same_dicts(expected: dict[str, JSON], value: dict[str, JSON], tolerance: float) -> bool:
    by_text = {str(key): item for key, item in expected.items()}
    return by_text.keys() == value.keys() and all(same_value(by_text[key], value[key], tolerance) for key in by_text)
