"""Compare two runs of the same tasks, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from rollbook.stats.columns import COST_COLUMNS, PASS_THRESHOLD, Bools, Columns, Ints, TaskStats
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

SOLVED_SHARE = 0.5


class Difference(msgspec.Struct, frozen=True):
    """A number in both runs, over the tasks that have it in both, and b - a with its paired 95% interval."""

    a: float | None
    b: float | None
    difference: float | None
    interval: Interval | None
    tasks: int


class Comparison(msgspec.Struct, frozen=True):
    """Two runs side by side. The tests ask whether the differences of the tasks' means could be chance.

    `permutations` is how many sign choices the permutation test drew; 0 where it enumerated all of them. `gained` and
    `lost` are the tasks that more than half of the rollouts pass in only one of the runs.
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
    """Compare two runs; `names` are the ids of the pairs. Pairs without a score in either run are left out."""
    with np.errstate(over="ignore", invalid="ignore"):
        stats_a, stats_b = (TaskStats(_renumber_tasks(side), threshold, side.groups) for side in (a, b))
        both, index_a, index_b = np.intersect1d(stats_a.rows, stats_b.rows, return_indices=True)
        differences = stats_b.means[index_b] - stats_a.means[index_a]
        rounding = ROUNDING * np.maximum(stats_b.scale[index_b], stats_a.scale[index_a])
        up, down = int((differences > rounding).sum()), int((differences < -rounding).sum())
        solved_a = stats_a.passed[index_a] / stats_a.n[index_a] > SOLVED_SHARE
        solved_b = stats_b.passed[index_b] / stats_b.n[index_b] > SOLVED_SHARE
        permutation = permutation_test(differences, seed=seed) if np.all(np.isfinite(differences)) else None
        return Comparison(
            tasks=len(both),
            threshold=threshold,
            metrics=_compare_metrics(stats_a, stats_b, ks),
            costs={
                name: _compare_sums(stats_a, stats_b, stats_a.sum_column(name), stats_b.sum_column(name))
                for name in COST_COLUMNS
            },
            permutation_p=permutation.p if permutation else None,
            permutations=permutation.drawn if permutation else None,
            sign_p=sign_test(up, down),
            better=up,
            worse=down,
            gained=_list_flipped(both, solved_b & ~solved_a, differences, names),
            lost=_list_flipped(both, solved_a & ~solved_b, -differences, names),
        )


def _renumber_tasks(side: PairedRun) -> Columns:
    """Return the compared rollouts, with pair numbers as tasks."""
    numbers = side.pairs[side.columns.task]
    return replace(side.columns.where(numbers >= 0), task=numbers[numbers >= 0])


def _compare_metrics(stats_a: TaskStats, stats_b: TaskStats, ks: Sequence[int] | None) -> dict[str, Difference]:
    """The mean is over all rollouts, as in a report; numbers @k are averaged over tasks."""
    shared_ks = np.intersect1d(default_ks(stats_a.n), default_ks(stats_b.n)).tolist() if ks is None else sorted(set(ks))
    metrics = {"mean": _compare_sums(stats_a, stats_b, stats_a.total, stats_b.total)}
    votes = stats_a.maj_at(shared_ks), stats_b.maj_at(shared_ks)
    graded = not (stats_a.binary and stats_b.binary)
    for k in shared_ks:
        covered = stats_a.covered_mask(k), stats_b.covered_mask(k)
        metrics[f"pass@{k}"] = _compare_values(stats_a, stats_b, stats_a.pass_at(k), stats_b.pass_at(k), covered)
        if k == 1:
            continue  # the others are then pass@1 or the mean
        metrics[f"pass^{k}"] = _compare_values(stats_a, stats_b, stats_a.pass_hat(k), stats_b.pass_hat(k), covered)
        if k in votes[0] and k in votes[1]:
            voting = stats_a.voting_mask(k), stats_b.voting_mask(k)
            metrics[f"maj@{k}"] = _compare_values(stats_a, stats_b, votes[0][k].values, votes[1][k].values, voting)
        if graded:
            metrics[f"best@{k}"] = _compare_values(stats_a, stats_b, stats_a.best_at(k), stats_b.best_at(k), covered)
    return metrics


def _compare_values(
    stats_a: TaskStats, stats_b: TaskStats, left: Floats, right: Floats, masks: tuple[Bools, Bools]
) -> Difference:
    """Compare values of the covered tasks of both sides, paired by task and averaged over tasks."""
    both, index_a, index_b = np.intersect1d(stats_a.rows[masks[0]], stats_b.rows[masks[1]], return_indices=True)
    equal = np.ones(len(both))
    return _make_difference((equal, left[index_a]), (equal, right[index_b]))


def _compare_sums(stats_a: TaskStats, stats_b: TaskStats, left: Floats, right: Floats) -> Difference:
    """Compare sums of the tasks of both sides, paired by task, as a mean over all their rollouts."""
    _, index_a, index_b = np.intersect1d(stats_a.rows, stats_b.rows, return_indices=True)
    return _make_difference(
        (stats_a.n[index_a].astype(np.float64), left[index_a]), (stats_b.n[index_b].astype(np.float64), right[index_b])
    )


def _make_difference(a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> Difference:
    """Return the difference of two ratios of sums over the same tasks, and its interval: one task is one draw.

    Each task contributes the deviations of its sums from the two means; if all tasks have equally many rollouts, this
    is the interval of a mean of differences.
    """
    (n_a, total_a), (n_b, total_b) = a, b
    tasks = len(n_a)
    if not tasks:
        return Difference(None, None, None, None, 0)
    mean_a, mean_b = float(total_a.sum() / n_a.sum()), float(total_b.sum() / n_b.sum())
    difference = finite_or_none(mean_b - mean_a)
    deviations = (total_b - n_b * mean_b) * (tasks / n_b.sum()) - (total_a - n_a * mean_a) * (tasks / n_a.sum())
    scale = float(max(np.abs(total_a / n_a).max(), np.abs(total_b / n_b).max()))
    error = clustered_error(np.ones(tasks), deviations, scale) if difference is not None else None
    return Difference(
        finite_or_none(mean_a), finite_or_none(mean_b), difference, confidence_interval(difference, error, tasks), tasks
    )


def _list_flipped(pairs: Ints, flipped: Bools, size: Floats, names: Sequence[str]) -> list[str]:
    """Return the names of the flipped tasks, those with the largest difference first."""
    indices = np.flatnonzero(flipped)
    return [names[pair] for pair in pairs[indices[np.argsort(-size[indices], kind="stable")]].tolist()]
