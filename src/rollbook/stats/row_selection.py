"""Select rows by expressions: a safe expression language, and `curate`, which filters, sorts, buckets and draws.

Expressions use Python's grammar, restricted to what is listed here: comparisons (chained too), `and or not`, `+ - * /`,
`in`, numbers, text, lists and names; nothing is ever called. An unknown value (null) stays unknown: a comparison with
it is neither true nor false, and such a row is not kept. Needs no NumPy.
"""

from __future__ import annotations

import ast
import math
import operator
import random
import re
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import TypeAlias

from rollbook.core import JSON, decode, encode
from rollbook.errors import UsageError

Row: TypeAlias = Mapping[str, JSON]
Evaluator: TypeAlias = Callable[[Row], JSON]
LabelledRow: TypeAlias = tuple[JSON, str | None, bytes]
"""The sort value of a row, its bucket, and its line."""

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
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}
MAX_CHARS, MAX_DEPTH = 10_000, 100
MAX_INT_BITS = 1024
"""Whole numbers beyond what a float can hold are refused, and unknown where a calculation yields them."""

_AT_K = re.compile(r"(pass|maj|best)@(\d+)")
_HAT_K = re.compile(r"pass\^(\d+)")


def to_identifier(column: str) -> str:
    """Return the name of a column in expressions.

    >>> [to_identifier(column) for column in ("pass@4", "pass^4", "maj@16", "mean")]
    ['pass_4', 'pass_hat_4', 'maj_16', 'mean']
    """
    return _HAT_K.sub(r"pass_hat_\1", _AT_K.sub(r"\1_\2", column))


def rename_columns(row: Row) -> dict[str, JSON]:
    """Return a row under the names that expressions use."""
    return {to_identifier(column): value for column, value in row.items()}


class Expression:
    """An expression, parsed once and then evaluated for many rows.

    >>> Expression("0 < mean < 1 and n >= 8")({"mean": 0.5, "n": 16})
    True
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        if len(text) > MAX_CHARS:
            raise self._error(f"longer than {MAX_CHARS} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", SyntaxWarning)  # "1and" is a warning in some versions of Python only
                tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise self._error(getattr(error, "msg", "") or "cannot be read") from None
        self._evaluate = self._build(tree.body, MAX_DEPTH)

    def __call__(self, row: Row) -> JSON:
        """Return the value for a row, whose keys are names as `rename_columns` makes them; None is unknown."""
        try:
            return self._evaluate(row)
        except TypeError as error:
            raise self._error(f"{error}, for {row.get('id', 'a row')}") from None

    def matches(self, row: Row) -> bool:
        """Return whether the expression is true for a row."""
        value = self(row)
        if not isinstance(value, bool | None):
            raise self._error(f"is {value!r} and not true or false; compare it with something, as in `mean > 0`")
        return value is True

    def check_names(self, known: Iterable[str]) -> None:
        """Raise UsageError for a name that no row has."""
        known_names = sorted(set(known))
        for name in sorted(self.names.difference(known_names)):
            close = get_close_matches(name, known_names, 1)
            suggestion = f"did you mean {close[0]}? " if close else ""
            raise self._error(f"unknown name {name}; {suggestion}known: {', '.join(known_names)}")

    def _error(self, why: str) -> UsageError:
        text = " ".join(self.text.split())
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        column = _AT_K.search(self.text) or _HAT_K.search(self.text)
        hint = f"; {column[0]} is written {to_identifier(column[0])}" if column else ""
        return UsageError(f'expression "{shown}": {why}{hint}')

    def _build(self, node: ast.AST, depth: int) -> Evaluator:
        build = _BUILDERS.get(type(node))
        if build is None:
            raise self._error(
                f"{_describe_node(node)} is not allowed; use names, numbers, text, + - * /, < = >, in, and or not"
            )
        if not depth:
            raise self._error("nested too deeply")
        return build(self, node, depth - 1)

    def _name(self, node: ast.Name, depth: int) -> Evaluator:
        self.names.add(node.id)
        return lambda row: row.get(node.id)

    def _constant(self, node: ast.Constant, depth: int) -> Evaluator:
        if not isinstance(node.value, bool | int | float | str):
            raise self._error(f"{node.value!r} is neither a number nor text")
        if isinstance(node.value, int) and node.value.bit_length() > MAX_INT_BITS:
            raise self._error("a number in it is too large")
        return lambda row: node.value

    def _list(self, node: ast.List | ast.Tuple | ast.Set, depth: int) -> Evaluator:
        items = [self._build(item, depth) for item in node.elts]
        return lambda row: [item(row) for item in items]

    def _unary(self, node: ast.UnaryOp, depth: int) -> Evaluator:
        value = self._build(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda row: None if (v := value(row)) is None else not v
        if isinstance(node.op, ast.USub):
            return lambda row: None if (v := value(row)) is None else -v
        raise self._error(f"{_describe_node(node.op)} is not allowed")

    def _binary(self, node: ast.BinOp, depth: int) -> Evaluator:
        operate = ARITHMETIC.get(type(node.op))
        if operate is None:
            raise self._error(f"{_describe_node(node.op)} is not allowed; arithmetic is + - * /")
        left, right = self._build(node.left, depth), self._build(node.right, depth)
        return lambda row: _calculate(operate, left(row), right(row))

    def _compare(self, node: ast.Compare, depth: int) -> Evaluator:
        compares = [COMPARISONS.get(type(op)) for op in node.ops]
        if None in compares:
            raise self._error("`is` is not allowed; use == or !=")
        values = [self._build(operand, depth) for operand in (node.left, *node.comparators)]
        links = [compare for compare in compares if compare is not None]
        return lambda row: _compare_chain(links, [value(row) for value in values])

    def _logical(self, node: ast.BoolOp, depth: int) -> Evaluator:
        values = [self._build(each, depth) for each in node.values]
        decisive = isinstance(node.op, ast.Or)
        return lambda row: _combine_logical(decisive, (value(row) for value in values))


def _describe_node(node: ast.AST) -> str:
    return {"Call": "a call", "Attribute": "an attribute", "Pow": "**"}.get(type(node).__name__, type(node).__name__)


def _calculate(operate: Callable[[JSON, JSON], JSON], left: JSON, right: JSON) -> JSON:
    if left is None or right is None:
        return None
    if isinstance(left, str | list) or isinstance(right, str | list):
        raise TypeError("arithmetic is for numbers")
    with suppress(ZeroDivisionError, OverflowError):
        value = operate(left, right)
        return None if isinstance(value, int) and value.bit_length() > MAX_INT_BITS else value
    return None


def _compare_chain(compares: list[Callable[[JSON, JSON], JSON]], values: list[JSON]) -> bool | None:
    """Evaluate a < b < c: false as soon as one link is, unknown where one is unknown."""
    links = zip(compares, pairwise(values), strict=True)
    return _combine_logical(False, (None if None in pair else compare(*pair) for compare, pair in links))


def _combine_logical(decisive: bool, values: Iterable[JSON]) -> bool | None:
    """Evaluate `or` (decisive: True) and `and` (decisive: False); an unknown value decides nothing."""
    unknown = False
    for value in values:
        if value is None:
            unknown = True
        elif bool(value) is decisive:
            return decisive
    return None if unknown else not decisive


_BUILDERS: dict[type[ast.AST], Callable[..., Evaluator]] = {
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


BUCKET_FIELD = "bucket"
_is_label = re.compile(r"\[[^\s,]+, [^\s,]+[\])]").fullmatch


@dataclass(frozen=True)
class Buckets:
    """The values of an expression cut at ascending edges; each bucket includes its lower edge, the last one both."""

    value: Expression
    edges: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Buckets:
        """Parse `mean:0,0.25,0.5,1`, or raise UsageError."""
        value, colon, cuts = text.rpartition(":")
        try:
            edges = tuple(float(cut) for cut in cuts.split(","))
        except ValueError:
            edges = ()
        rising = all(low < high for low, high in pairwise(edges))
        if not colon or len(edges) < 2 or not rising or not all(map(math.isfinite, edges)):
            raise UsageError(f"--bucket {text}: write a name and ascending edges, as in mean:0,0.25,0.5,0.75,1")
        return cls(Expression(value), edges)

    @property
    def labels(self) -> list[str]:
        """The names of the buckets."""
        pairs = list(pairwise(self.edges))
        return [
            f"[{_format_edge(low)}, {_format_edge(high)}{']' if high == self.edges[-1] else ')'}" for low, high in pairs
        ]

    def label_row(self, row: Mapping[str, JSON]) -> str | None:
        """Return the bucket of a row; None if it is in none."""
        value = self.value(row)
        if value is not None and not isinstance(value, int | float):
            raise UsageError(f"--bucket {self.value.text}: {str(value)[:40]!r} is not a number; buckets divide numbers")
        if value is None or not self.edges[0] <= value <= self.edges[-1]:
            return None
        return self.labels[min(bisect_right(self.edges, value), len(self.edges) - 1) - 1]


def _format_edge(value: float) -> str:
    """Format an edge, short unless that would be another number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


@dataclass(frozen=True)
class CurateOptions:
    """How to select rows. `per_bucket` rows are drawn from each bucket by the seed; `limit` is applied last."""

    keep: Expression | None = None
    sort: Expression | None = None
    descending: bool = False
    buckets: Buckets | None = None
    per_bucket: int | None = None
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_bucket is not None and self.buckets is None:
            raise UsageError("--per-bucket needs --bucket, as in --bucket mean:0,0.5,1 --per-bucket 100")

    @classmethod
    def parse(
        cls,
        keep: str | None = None,
        sort: str | None = None,
        bucket: str | None = None,
        *,
        descending: bool = False,
        per_bucket: int | None = None,
        limit: int | None = None,
        seed: int = 0,
    ) -> CurateOptions:
        """Read expressions and buckets from their texts."""
        return cls(
            keep=None if keep is None else Expression(keep),
            sort=None if sort is None else Expression(sort),
            descending=descending,
            buckets=None if bucket is None else Buckets.parse(bucket),
            per_bucket=per_bucket,
            limit=limit,
            seed=seed,
        )


@dataclass
class CuratedRows:
    """The selected rows, as lines without newlines, and how many rows of each bucket exist and were selected."""

    rows: int = 0
    matched: int = 0
    lines: list[bytes] = field(default_factory=list)
    buckets: dict[str, tuple[int, int]] = field(default_factory=dict)
    outside: int = 0


def curate(lines: Iterable[bytes], options: CurateOptions) -> CuratedRows:
    """Select among rows, one JSON object per line; a name that no row has is refused, with a list of the known ones."""
    result, known = CuratedRows(), set[str]()
    matched: list[LabelledRow] = []
    for line in lines:
        row = decode(line)
        values = rename_columns(row)
        known.update(values)
        result.rows += 1
        if options.keep is None or options.keep.matches(values):
            result.matched += 1
            label = options.buckets.label_row(values) if options.buckets else None
            matched.append((options.sort(values) if options.sort else None, label, _add_label(row, line, label)))
    for expression in (options.keep, options.sort, options.buckets.value if options.buckets else None):
        if expression is not None and result.rows:
            expression.check_names(known)
    chosen = _sort_rows(_draw_from_buckets(matched, options), options)[: options.limit]
    result.lines = [line for _, _, line in chosen]
    if options.buckets:
        result.outside = sum(label is None for _, label, _ in matched)
        available, selected = (Counter(label for _, label, _ in rows) for rows in (matched, chosen))
        result.buckets = {label: (available[label], selected[label]) for label in options.buckets.labels}
    return result


def _add_label(row: dict[str, JSON], line: bytes, label: str | None) -> bytes:
    if label is None:
        return line.rstrip(b"\n")
    if BUCKET_FIELD in row and not _is_label(str(row[BUCKET_FIELD])):
        raise UsageError(f"row {row.get('id')!r} already has a field {BUCKET_FIELD!r}; rename it in the data")
    return encode(row | {BUCKET_FIELD: label})


def _draw_from_buckets(rows: list[LabelledRow], options: CurateOptions) -> list[LabelledRow]:
    """Draw from each bucket as many rows as wanted, in their original order."""
    if options.buckets is None:
        return rows
    rng = random.Random(options.seed)
    chosen: set[int] = set()
    for label in options.buckets.labels:
        indices = [index for index, (_, row_label, _) in enumerate(rows) if row_label == label]
        wanted = len(indices) if options.per_bucket is None else min(options.per_bucket, len(indices))
        chosen.update(rng.sample(indices, wanted))
    return [rows[index] for index in sorted(chosen)]


def _sort_rows(rows: list[LabelledRow], options: CurateOptions) -> list[LabelledRow]:
    """Sort by the value of the sort expression, rows without one last; equal ones keep their order."""
    if options.sort is None:
        return rows
    with_value, without_value = [row for row in rows if row[0] is not None], [row for row in rows if row[0] is None]
    try:
        return sorted(with_value, key=lambda row: row[0], reverse=options.descending) + without_value
    except TypeError:
        raise UsageError(f"--sort {options.sort.text}: its values cannot be compared with each other") from None
