"""Intervals and tests by seeded resampling: the bootstrap over tasks, and the paired permutation of signs."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.stats.estimators import Floats, Interval, clustered_error

BOOTSTRAP_DRAWS = 1000
PERMUTATIONS = 10_000
MAX_ENUMERATED_TASKS = 14
"""Up to this many tasks with a difference, every choice of signs is enumerated."""

MAX_COUNTED_FLIPS = 1000
"""Up to this many tasks the tail is counted in whole numbers."""

SMALLEST_P = sys.float_info.min
MAX_PERMUTATION_CELLS = 2e7
"""How many numbers all permutations together may take; there are fewer permutations for very many tasks."""


def bootstrap_interval(
    n: Floats, totals: Floats, scale: float | None = None, *, seed: int = 0, draws: int = BOOTSTRAP_DRAWS
) -> Interval | None:
    """Return the 95% percentile interval of the mean of all rollouts when tasks are resampled.

    None where the clustered error is: fewer than two tasks, or tasks that do not differ.
    """
    if clustered_error(n, totals, scale) is None:
        return None
    rng = np.random.default_rng(seed)
    kinds, times = np.unique(n + 1j * totals, return_counts=True)  # pairs, in the form that sorts fastest
    pairs = np.column_stack([kinds.real, kinds.imag])
    means = (
        _draw_by_kind(pairs, times, draws, rng) if len(pairs) * 4 <= len(n) else _draw_by_index(n, totals, draws, rng)
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _draw_by_kind(pairs: Floats, times: NDArray[np.integer], draws: int, rng: np.random.Generator) -> Floats:
    """Draw how often each kind of task occurs: the same distribution as drawing tasks, and cheap for few kinds."""
    counts = rng.multinomial(int(times.sum()), times / times.sum(), size=draws)
    sums: Floats = counts @ pairs
    return sums[:, 1] / sums[:, 0]


def _draw_by_index(n: Floats, totals: Floats, draws: int, rng: np.random.Generator) -> Floats:
    means = []
    for portion in _split_draws(draws, len(n)):
        indices = rng.integers(0, len(n), (portion, len(n)))
        means.append(totals[indices].sum(axis=1) / n[indices].sum(axis=1))
    return np.concatenate(means)


class PermutationResult(NamedTuple):
    """The p of a permutation test, and how many sign choices were drawn for it; 0: all of them were enumerated."""

    p: float
    drawn: int


def permutation_test(
    differences: Floats, *, seed: int = 0, permutations: int = PERMUTATIONS
) -> PermutationResult | None:
    """Return the chance of a mean difference at least as large if each task's sign were random; None without tasks.

    Few tasks: over every choice of signs. More: over drawn ones, the observed one among them, so it is never 0.

    >>> permutation_test(np.array([1.0, 1.0, 1.0, 0.0]))
    PermutationResult(p=0.25, drawn=0)
    """
    if not len(differences):
        return None
    nonzero = differences[differences != 0]
    observed = abs(float(differences.sum())) - 1e-12 * float(np.abs(differences).sum())
    if not math.isfinite(observed):
        return None  # sums that overflow
    if len(nonzero) <= MAX_ENUMERATED_TASKS:
        return PermutationResult(float((np.abs(_enumerate_signed_sums(nonzero)) >= observed).mean()), 0)
    rng = np.random.default_rng(seed)
    sizes, times = np.unique(np.abs(nonzero), return_counts=True)
    permutations = max(1000, min(permutations, int(MAX_PERMUTATION_CELLS / len(sizes))))
    sums = np.concatenate(
        [_draw_signed_sums(sizes, times, portion, rng) for portion in _split_draws(permutations, len(sizes))]
    )
    return PermutationResult((1 + int((np.abs(sums) >= observed).sum())) / (1 + permutations), permutations)


def _enumerate_signed_sums(values: Floats) -> Floats:
    """Return the sums under all choices of signs."""
    sums = np.zeros(1)
    for value in values.tolist():
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _split_draws(draws: int, size: int) -> list[int]:
    """Split draws of a size into portions that fit into a few megabytes."""
    at_once = max(1, int(1e6 // max(1, size)))
    return [min(at_once, draws - start) for start in range(0, draws, at_once)]


def _draw_signed_sums(sizes: Floats, times: NDArray[np.integer], permutations: int, rng: np.random.Generator) -> Floats:
    heads = rng.binomial(times.astype(np.int64), 0.5, size=(permutations, len(sizes)))
    sums: Floats = (2 * heads - times) @ sizes
    return sums


def sign_test(up: int, down: int) -> float | None:
    """Return the chance of a split at least as uneven if each sign were random, never 0; None where no task differs.

    >>> sign_test(5, 0), sign_test(3, 3)
    (0.0625, 1.0)
    """
    flips, smaller = up + down, min(up, down)
    if not flips:
        return None
    if flips <= MAX_COUNTED_FLIPS:
        tail = sum(math.comb(flips, i) for i in range(smaller + 1)) / (1 << flips)
    else:
        log_counts = (
            math.lgamma(flips + 1) - math.lgamma(i + 1) - math.lgamma(flips - i + 1) for i in range(smaller + 1)
        )
        tail = math.fsum(math.exp(log_count - flips * math.log(2)) for log_count in log_counts)
    return max(SMALLEST_P, min(1.0, 2 * tail))
