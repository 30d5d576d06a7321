"""Two runs of the same tasks, compared task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from rollbook.core import JSON
from rollbook.stats.columns import PASS_THRESHOLD, Bools, Columns, Ints, TaskStats
from rollbook.stats.estimators import (
    ROUNDING,
    Floats,
    Interval,
    clustered_error,
    confidence_interval,
    default_ks,
    finite_or_none,
)
from rollbook.stats.resampling import permutation_test, sign_test

COST_COLUMNS = ("prompt_tokens", "completion_tokens", "turns", "truncated", "seconds")
SOLVED_SHARE = 0.5


class Difference(msgspec.Struct, frozen=True):
    """A number in both runs, over the tasks that both have it for, and b - a with its paired 95% interval."""

    a: float | None
    b: float | None
    difference: float | None
    interval: Interval | None
    tasks: int


class Comparison(msgspec.Struct, frozen=True):
    """Two runs beside each other. The tests ask whether the differences of the tasks' means could be chance.

    `permutations` is how many choices of signs the permutation test drew; 0 where it counted all there are. `gained`
    and `lost` are the tasks that more than half of the rollouts pass in only one of the runs.
    """

    tasks: int
    threshold: float
    metrics: dict[str, Difference]
    costs: dict[str, Difference]
    permutation_p: float | None
    permutations: int | None
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
class PairedRun:
    """One run: its scored rollouts, and the pair number of each of its rows (-1: not compared).

    `groups` has the environment of every pair, where there are several.
    """

    columns: Columns
    pairs: Ints
    groups: Ints | None = None


def compare_columns(
    a: PairedRun,
    b: PairedRun,
    names: Sequence[str],
    ks: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    seed: int = 0,
) -> Comparison:
    """Pair two runs; `names` are the ids of the pairs. Pairs that either run has no score for are left out."""
    with np.errstate(over="ignore", invalid="ignore"):
        one, two = (TaskStats(_renumber_tasks(side), threshold, side.groups) for side in (a, b))
        both, at_a, at_b = np.intersect1d(one.rows, two.rows, return_indices=True)
        moved = two.means[at_b] - one.means[at_a]
        tiny = ROUNDING * np.maximum(two.scale[at_b], one.scale[at_a])
        up, down = int((moved > tiny).sum()), int((moved < -tiny).sum())
        solved_a = one.passed[at_a] / one.n[at_a] > SOLVED_SHARE
        solved_b = two.passed[at_b] / two.n[at_b] > SOLVED_SHARE
        permuted = permutation_test(moved, seed=seed) if np.all(np.isfinite(moved)) else None
        return Comparison(
            tasks=len(both),
            threshold=threshold,
            metrics=_compare_metrics(one, two, ks),
            costs={name: _compare_sums(one, two, one.sum_column(name), two.sum_column(name)) for name in COST_COLUMNS},
            permutation_p=permuted.p if permuted else None,
            permutations=permuted.drawn if permuted else None,
            sign_p=sign_test(up, down),
            better=up,
            worse=down,
            gained=_list_flipped(both, solved_b & ~solved_a, moved, names),
            lost=_list_flipped(both, solved_a & ~solved_b, -moved, names),
        )


def _renumber_tasks(side: PairedRun) -> Columns:
    """The compared rollouts, their tasks named by pairs."""
    numbers = side.pairs[side.columns.task]
    return replace(side.columns.where(numbers >= 0), task=numbers[numbers >= 0])


def _compare_metrics(one: TaskStats, two: TaskStats, ks: Sequence[int] | None) -> dict[str, Difference]:
    """The mean is of all rollouts, as in a report; numbers @k are averaged over tasks."""
    both = np.intersect1d(default_ks(one.n), default_ks(two.n)).tolist() if ks is None else sorted(set(ks))
    found = {"mean": _compare_sums(one, two, one.total, two.total)}
    votes = one.maj_at(both), two.maj_at(both)
    graded = not (one.binary and two.binary)
    for k in both:
        held = one.covered_mask(k), two.covered_mask(k)
        found[f"pass@{k}"] = _compare_values(one, two, one.pass_at(k), two.pass_at(k), held)
        if k == 1:
            continue  # the others are then pass@1 or the mean
        found[f"pass^{k}"] = _compare_values(one, two, one.pass_hat(k), two.pass_hat(k), held)
        if k in votes[0] and k in votes[1]:
            voted = one.voting_mask(k), two.voting_mask(k)
            found[f"maj@{k}"] = _compare_values(one, two, votes[0][k].values, votes[1][k].values, voted)
        if graded:
            found[f"best@{k}"] = _compare_values(one, two, one.best_at(k), two.best_at(k), held)
    return found


def _compare_values(
    one: TaskStats, two: TaskStats, left: Floats, right: Floats, held: tuple[Bools, Bools]
) -> Difference:
    """Values of the covered tasks of both sides, paired by task and averaged over tasks."""
    both, at_a, at_b = np.intersect1d(one.rows[held[0]], two.rows[held[1]], return_indices=True)
    even = np.ones(len(both))
    return _make_difference((even, left[at_a]), (even, right[at_b]))


def _compare_sums(one: TaskStats, two: TaskStats, left: Floats, right: Floats) -> Difference:
    """Sums of the tasks of both sides, paired by task, as a mean over all their rollouts."""
    _, at_a, at_b = np.intersect1d(one.rows, two.rows, return_indices=True)
    return _make_difference((one.n[at_a].astype(np.float64), left[at_a]), (two.n[at_b].astype(np.float64), right[at_b]))


def _make_difference(a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> Difference:
    """The difference of two ratios of sums over the same tasks, and its interval: one task is one draw.

    Each task moves the difference by what its sums are off the two means; with equally many rollouts everywhere that is
    the interval of a mean of differences.
    """
    (n_a, total_a), (n_b, total_b) = a, b
    tasks = len(n_a)
    if not tasks:
        return Difference(None, None, None, None, 0)
    mean_a, mean_b = float(total_a.sum() / n_a.sum()), float(total_b.sum() / n_b.sum())
    gap = finite_or_none(mean_b - mean_a)
    moves = (total_b - n_b * mean_b) * (tasks / n_b.sum()) - (total_a - n_a * mean_a) * (tasks / n_a.sum())
    scale = float(max(np.abs(total_a / n_a).max(), np.abs(total_b / n_b).max()))
    error = clustered_error(np.ones(tasks), moves, scale) if gap is not None else None
    return Difference(
        finite_or_none(mean_a), finite_or_none(mean_b), gap, confidence_interval(gap, error, tasks), tasks
    )


def _list_flipped(pairs: Ints, flipped: Bools, size: Floats, names: Sequence[str]) -> list[str]:
    """The tasks that flipped, the furthest first."""
    places = np.flatnonzero(flipped)
    return [names[pair] for pair in pairs[places[np.argsort(-size[places], kind="stable")]].tolist()]
