"""Choosing tasks by what they came to: keep, sort, divide into buckets, draw from each."""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from rollbook.core.json import JSON, decode, encode
from rollbook.errors import UsageError
from rollbook.stats.expression import Expression, named

BUCKET = "bucket"
_is_label = re.compile(r"\[[^\s,]+, [^\s,]+[\])]").fullmatch


@dataclass(frozen=True)
class Buckets:
    """The values of an expression cut at ascending edges; each bucket has its lower edge, the last one both."""

    value: Expression
    edges: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Buckets:
        """`mean:0,0.25,0.5,1`, or a UsageError."""
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
        """The buckets as they are written down."""
        pairs = list(pairwise(self.edges))
        return [f"[{_edge(low)}, {_edge(high)}{']' if high == self.edges[-1] else ')'}" for low, high in pairs]

    def label(self, row: Mapping[str, JSON]) -> str | None:
        """The bucket a row falls into; None if into none."""
        value = self.value(row)
        if value is not None and not isinstance(value, int | float):
            raise UsageError(f"--bucket {self.value.text}: {str(value)[:40]!r} is not a number; buckets divide numbers")
        if value is None or not self.edges[0] <= value <= self.edges[-1]:
            return None
        return self.labels[min(bisect_right(self.edges, value), len(self.edges) - 1) - 1]


def _edge(value: float) -> str:
    """An edge, short unless that would be another number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


@dataclass(frozen=True)
class Wish:
    """What is asked of the rows. `per_bucket` are drawn from each bucket by the seed; `limit` comes last."""

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


@dataclass
class Choice:
    """The rows chosen, as lines without their newlines, and how many rows of every bucket there are and are chosen."""

    rows: int = 0
    kept: int = 0
    lines: list[bytes] = field(default_factory=list)
    buckets: dict[str, tuple[int, int]] = field(default_factory=dict)
    outside: int = 0


def curate(lines: Iterable[bytes], wish: Wish) -> Choice:
    """Choose among rows, one JSON object a line; names that no row has are refused with those there are."""
    choice, known = Choice(), set[str]()
    held: list[tuple[JSON, str | None, bytes]] = []
    for line in lines:
        row = decode(line)
        values = named(row)
        known.update(values)
        choice.rows += 1
        if wish.keep is None or wish.keep.keeps(values):
            choice.kept += 1
            label = wish.buckets.label(values) if wish.buckets else None
            held.append((wish.sort(values) if wish.sort else None, label, _labelled(row, line, label)))
    for expression in (wish.keep, wish.sort, wish.buckets.value if wish.buckets else None):
        if expression is not None and choice.rows:
            expression.check(known)
    chosen = _sorted(_drawn(held, wish), wish)[: wish.limit]
    choice.lines = [line for _, _, line in chosen]
    if wish.buckets:
        choice.outside = sum(label is None for _, label, _ in held)
        there, taken = (Counter(label for _, label, _ in rows) for rows in (held, chosen))
        choice.buckets = {label: (there[label], taken[label]) for label in wish.buckets.labels}
    return choice


def _labelled(row: dict[str, JSON], line: bytes, label: str | None) -> bytes:
    if label is None:
        return line.rstrip(b"\n")
    if BUCKET in row and not _is_label(str(row[BUCKET])):
        raise UsageError(f"row {row.get('id')!r} has a field {BUCKET!r} of its own; rename it in the data")
    return encode(row | {BUCKET: label})


def _drawn(held: list[tuple[JSON, str | None, bytes]], wish: Wish) -> list[tuple[JSON, str | None, bytes]]:
    """From each bucket as many as are wanted, in the order they came."""
    if wish.buckets is None:
        return held
    rng = random.Random(wish.seed)
    chosen: set[int] = set()
    for label in wish.buckets.labels:
        places = [at for at, (_, found, _) in enumerate(held) if found == label]
        wanted = len(places) if wish.per_bucket is None else min(wish.per_bucket, len(places))
        chosen.update(rng.sample(places, wanted))
    return [held[at] for at in sorted(chosen)]


def _sorted(held: list[tuple[JSON, str | None, bytes]], wish: Wish) -> list[tuple[JSON, str | None, bytes]]:
    """By the value asked for, what has none last; equal ones stay in their order."""
    if wish.sort is None:
        return held
    some, none = [each for each in held if each[0] is not None], [each for each in held if each[0] is None]
    try:
        return sorted(some, key=lambda each: each[0], reverse=wish.descending) + none
    except TypeError:
        raise UsageError(f"--sort {wish.sort.text}: its values cannot be compared with each other") from None
