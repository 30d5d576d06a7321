"""Two runs of the same tasks, paired task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from rollbook.core.json import JSON
from rollbook.stats.columns import Bools, Columns, Ints
from rollbook.stats.estimators import ROUNDING, Floats, Interval, clustered_error, default_ks, finite, interval
from rollbook.stats.resampling import permutation_test, sign_test
from rollbook.stats.tasks import PASS, Tasks

COSTS = ("prompt_tokens", "completion_tokens", "turns", "truncated", "seconds")
SOLVED = 0.5


class Difference(msgspec.Struct, frozen=True):
    """A number in both runs, averaged over the tasks both have it for, and b - a with its paired 95% interval."""

    a: float | None
    b: float | None
    difference: float | None
    interval: Interval | None
    tasks: int


class Comparison(msgspec.Struct, frozen=True):
    """Two runs beside each other. The tests ask whether the difference of means could be chance.

    `gained` and `lost` are the tasks that more than half of the rollouts pass in only one of the runs.
    """

    tasks: int
    threshold: float
    metrics: dict[str, Difference]
    costs: dict[str, Difference]
    permutation_p: float | None
    sign_p: float | None
    better: int
    worse: int
    gained: list[str]
    lost: list[str]

    def json(self) -> dict[str, JSON]:
        """The comparison as plain JSON."""
        plain: dict[str, JSON] = msgspec.to_builtins(self)
        return plain


@dataclass(frozen=True)
class Side:
    """One run: its scored rollouts, and the pair number of each of its rows (-1: not compared)."""

    columns: Columns
    pairs: Ints


def compare(
    a: Side, b: Side, names: Sequence[str], ks: Sequence[int] | None = None, threshold: float = PASS, seed: int = 0
) -> Comparison:
    """Pair two runs; `names` are the ids of the pairs. Pairs that either run has no score for are left out."""
    with np.errstate(over="ignore", invalid="ignore"):
        one, two = (Tasks(_renumbered(side), threshold) for side in (a, b))
        both, at_a, at_b = np.intersect1d(one.rows, two.rows, return_indices=True)
        moved = two.means[at_b] - one.means[at_a]
        tiny = ROUNDING * np.maximum(two.scale[at_b], one.scale[at_a])
        up, down = int((moved > tiny).sum()), int((moved < -tiny).sum())
        solved_a = one.passed[at_a] / one.n[at_a] > SOLVED
        solved_b = two.passed[at_b] / two.n[at_b] > SOLVED
        return Comparison(
            tasks=len(both),
            threshold=threshold,
            metrics=_metrics(one, two, ks),
            costs={name: _paired(one, two, one.sum(name) / one.n, two.sum(name) / two.n) for name in COSTS},
            permutation_p=permutation_test(moved, seed=seed) if np.all(np.isfinite(moved)) else None,
            sign_p=sign_test(up, down),
            better=up,
            worse=down,
            gained=_listed(both, solved_b & ~solved_a, moved, names),
            lost=_listed(both, solved_a & ~solved_b, -moved, names),
        )


def _renumbered(side: Side) -> Columns:
    """The compared rollouts, their tasks named by pairs."""
    numbers = side.pairs[side.columns.task]
    return replace(side.columns.where(numbers >= 0), task=numbers[numbers >= 0])


def _metrics(one: Tasks, two: Tasks, ks: Sequence[int] | None) -> dict[str, Difference]:
    both = np.intersect1d(default_ks(one.n), default_ks(two.n)).tolist() if ks is None else sorted(set(ks))
    found = {"mean": _paired(one, two, one.means, two.means)}
    votes = one.maj_at(both), two.maj_at(both)
    for k in both:
        held = one.covered(k), two.covered(k)
        found[f"pass@{k}"] = _paired(one, two, one.pass_at(k), two.pass_at(k), held)
        if k > 1 and k in votes[0] and k in votes[1]:
            found[f"maj@{k}"] = _paired(one, two, votes[0][k].values, votes[1][k].values, held)
    return found


def _paired(one: Tasks, two: Tasks, left: Floats, right: Floats, held: tuple[Bools, Bools] | None = None) -> Difference:
    """Values of the (covered) tasks of both sides, paired by task."""
    rows_a, rows_b = (one.rows, two.rows) if held is None else (one.rows[held[0]], two.rows[held[1]])
    both, at_a, at_b = np.intersect1d(rows_a, rows_b, return_indices=True)
    if not len(both):
        return Difference(None, None, None, None, 0)
    a, b = left[at_a], right[at_b]
    gap = finite(float((b - a).mean()))
    scale = float(max(np.abs(a).max(), np.abs(b).max()))
    error = clustered_error(np.ones(len(both)), b - a, scale) if gap is not None else None
    return Difference(finite(float(a.mean())), finite(float(b.mean())), gap, interval(gap, error), len(both))


def _listed(pairs: Ints, flipped: Bools, size: Floats, names: Sequence[str]) -> list[str]:
    """The tasks that flipped, the furthest first."""
    places = np.flatnonzero(flipped)
    return [names[pair] for pair in pairs[places[np.argsort(-size[places], kind="stable")]].tolist()]
