"""A safe expression over the columns of a row: Python's own grammar, of which only what is listed here is taken.

Comparisons (chained too), `and or not`, `+ - * /`, `in`, numbers, text, lists and names; nothing is ever called. What
is unknown (null) stays unknown: a comparison with it is neither true nor false, and such a row is not kept.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import pairwise
from typing import TypeAlias

from rollbook.core.json import JSON
from rollbook.errors import UsageError

Row: TypeAlias = Mapping[str, JSON]
Value: TypeAlias = Callable[[Row], JSON]

ARITHMETIC: dict[type[ast.operator], Callable[[JSON, JSON], JSON]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[JSON, JSON], JSON]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda item, held: item in held,
    ast.NotIn: lambda item, held: item not in held,
}
LONGEST, DEEPEST = 10_000, 100
MOST_BITS = 1024
"""Whole numbers beyond what a float can hold are refused, and unknown where they come out of a calculation."""

_AT = re.compile(r"(pass|maj|best)@(\d+)")
_HAT = re.compile(r"pass\^(\d+)")


def name_of(column: str) -> str:
    """The name of a column in expressions.

    >>> [name_of(column) for column in ("pass@4", "pass^4", "maj@16", "mean")]
    ['pass_4', 'pass_hat_4', 'maj_16', 'mean']
    """
    return _HAT.sub(r"pass_hat_\1", _AT.sub(r"\1_\2", column))


def named(row: Row) -> dict[str, JSON]:
    """A row under the names that expressions use."""
    return {name_of(column): value for column, value in row.items()}


class Expression:
    """An expression, understood once and then asked of many rows.

    >>> Expression("0 < mean < 1 and n >= 8")({"mean": 0.5, "n": 16})
    True
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        if len(text) > LONGEST:
            raise self._refused(f"longer than {LONGEST} characters")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise self._refused(getattr(error, "msg", "") or "cannot be read") from None
        self._value = self._build(tree.body, DEEPEST)

    def __call__(self, row: Row) -> JSON:
        """The value for a row, whose keys are names as in `named`; None is unknown."""
        try:
            return self._value(row)
        except TypeError as error:
            raise self._refused(f"{error}, for {row.get('id', 'a row')}") from None

    def keeps(self, row: Row) -> bool:
        """Whether the expression is true of a row."""
        value = self(row)
        if not isinstance(value, bool | None):
            raise self._refused(f"is {value!r} and not true or false; compare it with something, as in `mean > 0`")
        return value is True

    def check(self, known: Iterable[str]) -> None:
        """Refuse names that no row has."""
        have = sorted(set(known))
        for name in sorted(self.names.difference(have)):
            close = get_close_matches(name, have, 1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise self._refused(f"unknown name {name}; {meant}known: {', '.join(have)}")

    def _refused(self, why: str) -> UsageError:
        shown = self.text if len(self.text) <= 80 else f"{self.text[:77]}..."
        column = _AT.search(self.text) or _HAT.search(self.text)
        hint = f"; {column[0]} is written {name_of(column[0])}" if column else ""
        return UsageError(f'expression "{shown}": {why}{hint}')

    def _build(self, node: ast.AST, depth: int) -> Value:
        build = _BUILDERS.get(type(node))
        if build is None:
            raise self._refused(
                f"{_word(node)} is not allowed; use names, numbers, text, + - * /, < = >, in, and or not"
            )
        if not depth:
            raise self._refused("nested too deeply")
        return build(self, node, depth - 1)

    def _name(self, node: ast.Name, depth: int) -> Value:
        self.names.add(node.id)
        return lambda row: row.get(node.id)

    def _constant(self, node: ast.Constant, depth: int) -> Value:
        if not isinstance(node.value, bool | int | float | str):
            raise self._refused(f"{node.value!r} is neither a number nor text")
        if isinstance(node.value, int) and node.value.bit_length() > MOST_BITS:
            raise self._refused("a number in it is too large")
        return lambda row: node.value

    def _list(self, node: ast.List | ast.Tuple | ast.Set, depth: int) -> Value:
        items = [self._build(item, depth) for item in node.elts]
        return lambda row: [item(row) for item in items]

    def _unary(self, node: ast.UnaryOp, depth: int) -> Value:
        value = self._build(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda row: None if (v := value(row)) is None else not v
        if isinstance(node.op, ast.USub):
            return lambda row: None if (v := value(row)) is None else -v
        raise self._refused(f"{_word(node.op)} is not allowed")

    def _binary(self, node: ast.BinOp, depth: int) -> Value:
        operate = ARITHMETIC.get(type(node.op))
        if operate is None:
            raise self._refused(f"{_word(node.op)} is not allowed; arithmetic is + - * /")
        left, right = self._build(node.left, depth), self._build(node.right, depth)
        return lambda row: _calculated(operate, left(row), right(row))

    def _compare(self, node: ast.Compare, depth: int) -> Value:
        compares = [COMPARISONS.get(type(op)) for op in node.ops]
        if None in compares:
            raise self._refused("`is` is not allowed; use == or !=")
        values = [self._build(each, depth) for each in (node.left, *node.comparators)]
        links = [each for each in compares if each is not None]
        return lambda row: _chained(links, [value(row) for value in values])

    def _logical(self, node: ast.BoolOp, depth: int) -> Value:
        values = [self._build(each, depth) for each in node.values]
        decisive = isinstance(node.op, ast.Or)
        return lambda row: _settled(decisive, (value(row) for value in values))


def _word(node: ast.AST) -> str:
    return {"Call": "a call", "Attribute": "an attribute", "Pow": "**"}.get(type(node).__name__, type(node).__name__)


def _calculated(operate: Callable[[JSON, JSON], JSON], left: JSON, right: JSON) -> JSON:
    if left is None or right is None:
        return None
    if isinstance(left, str | list) or isinstance(right, str | list):
        raise TypeError("arithmetic is for numbers")
    try:
        value = operate(left, right)
        return None if isinstance(value, int) and value.bit_length() > MOST_BITS else value
    except (ZeroDivisionError, OverflowError):
        return None


def _chained(compares: list[Callable[[JSON, JSON], JSON]], values: list[JSON]) -> bool | None:
    """a < b < c: false as soon as one link is, unknown where one is unknown."""
    links = zip(compares, pairwise(values), strict=True)
    return _settled(False, (None if None in pair else compare(*pair) for compare, pair in links))


def _settled(decisive: bool, values: Iterable[JSON]) -> bool | None:
    """`or` (decisive: True) and `and` (decisive: False), in which the unknown decides nothing."""
    unknown = False
    for value in values:
        if value is None:
            unknown = True
        elif bool(value) is decisive:
            return decisive
    return None if unknown else not decisive


_BUILDERS: dict[type[ast.AST], Callable[..., Value]] = {
    ast.Name: Expression._name,
    ast.Constant: Expression._constant,
    ast.List: Expression._list,
    ast.Tuple: Expression._list,
    ast.Set: Expression._list,
    ast.UnaryOp: Expression._unary,
    ast.BinOp: Expression._binary,
    ast.Compare: Expression._compare,
    ast.BoolOp: Expression._logical,
}
