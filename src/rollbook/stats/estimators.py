"""The estimators, as pure functions: an undefined value is None or left out, and NaN cannot occur.

pass@k, pass^k, best@k (the expected maximum of k rewards, which is not pass@k), means, clustered errors, intervals.
Counts are arrays with one entry per task: n scored rollouts, of which c passed.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Interval: TypeAlias = tuple[float, float]

Z95 = 1.959963984540054
"""The normal quantile of 0.975, written out since `statistics` takes long to import."""

T95 = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
)
"""Student's quantiles of 0.975 for 1, 2, ... 20 degrees of freedom."""

ROUNDING = 1e-13
"""Differences below this share of the values that were subtracted are rounding."""


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
    """Return the chance that at least one of k rollouts, drawn without replacement, passes: 1 - C(n-c, k) / C(n, k).

    Unbiased for k independent tries. Every n must be at least k.

    >>> pass_at_k([5], [2], 3).tolist()
    [0.9]
    """
    counts, passed = _check_counts(n, c, k)
    return 1.0 - _share_of_choices(counts, counts - passed, k)


def pass_hat_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
    """Return the chance that all of k rollouts, drawn without replacement, pass: C(c, k) / C(n, k).

    >>> pass_hat_k([4], [3], 2).tolist()
    [0.5]
    """
    counts, passed = _check_counts(n, c, k)
    return _share_of_choices(counts, passed, k)


def _check_counts(n: ArrayLike, c: ArrayLike, k: int) -> tuple[Floats, Floats]:
    counts, passed = np.atleast_1d(np.asarray(n, np.float64)), np.atleast_1d(np.asarray(c, np.float64))
    if k < 1 or np.any(counts < k) or np.any(passed < 0) or np.any(passed > counts):
        raise ValueError(f"needs 1 <= k <= n and 0 <= c <= n, got k={k}")
    return counts, passed


def _share_of_choices(n: Floats, m: Floats, k: int) -> Floats:
    """Return C(m, k) / C(n, k) as a product of k factors between 0 and 1, which can neither overflow nor cancel."""
    share = np.ones_like(n)
    for i in range(k):
        share *= np.maximum(m - i, 0.0) / (n - i)
    return share


def mean_or_none(total: float, n: int) -> float | None:
    """Return the mean of n numbers; None for none."""
    return finite_or_none(total / n) if n else None


def sample_std(values: Floats) -> float | None:
    """Return the sample standard deviation (n - 1); None for fewer than two values, and where it overflows.

    Computed from the distances to one of the values, so that a common offset costs no digits.

    >>> sample_std(np.array([1e7, 1e7 + 1, 1e7 + 2]))
    1.0
    """
    if len(values) < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        offsets = values - values[0]
        size = float(np.max(np.abs(offsets)))  # squares of values divided by it neither overflow nor vanish
        return finite_or_none(size * float(np.std(offsets / size, ddof=1))) if size else 0.0


def clustered_error(n: Floats, totals: Floats, scale: float | None = None) -> float | None:
    """Return the standard error of the mean of all rollouts; the rollouts of one task count as one draw.

    `scale` is the size of the numbers that were summed, where it is not that of the totals. None for fewer than two
    tasks, and where the tasks do not differ: without spread the error is unknown.
    """
    tasks, count = len(n), float(np.sum(n))
    if tasks < 2 or not count:
        return None
    deviations = totals - n * (np.sum(totals) / count)
    if np.max(np.abs(deviations)) <= ROUNDING * (float(np.max(np.abs(totals))) if scale is None else scale):
        return None
    return finite_or_none(math.sqrt(tasks / (tasks - 1) * float(np.sum(deviations**2))) / count)


def confidence_interval(centre: float | None, error: float | None, tasks: int) -> Interval | None:
    """Return the 95% interval, by Student's t with tasks - 1 degrees of freedom; None where either is undefined."""
    if centre is None or error is None:
        return None
    half_width = t95(tasks - 1) * error
    low, high = centre - half_width, centre + half_width
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def t95(freedom: int) -> float:
    """Return Student's quantile of 0.975: from the table, beyond it by the expansion around the normal one.

    >>> [round(t95(freedom), 4) for freedom in (1, 9, 40, 10**9)]
    [12.7062, 2.2622, 2.0211, 1.96]
    """
    if freedom <= len(T95):
        return T95[freedom - 1]
    z2 = Z95**2
    first, second = (z2 + 1) / 4, ((5 * z2 + 16) * z2 + 3) / 96
    third = (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384
    return Z95 * (1 + first / freedom + second / freedom**2 + third / freedom**3)


def clip_interval(bounds: Interval | None, low: float, high: float) -> Interval | None:
    """Return the part of an interval that the quantity can take."""
    return None if bounds is None else (max(bounds[0], low), min(bounds[1], high))


def finite_or_none(value: float) -> float | None:
    """Return the number, or None where it overflowed."""
    return float(value) if math.isfinite(value) else None


def default_ks(counts: ArrayLike) -> list[int]:
    """Return the powers of two up to the most common number of rollouts per task, and that number itself.

    >>> default_ks([6, 6, 6, 5, 0])
    [1, 2, 4, 6]
    """
    sizes = np.asarray(counts, np.int64)
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return [1]
    top = int(np.argmax(np.bincount(sizes)))
    return sorted({2**i for i in range(top.bit_length())} | {top})


def best_at_k(rewards: Floats, n: NDArray[np.integer], k: int) -> Floats:
    """Return the expected maximum over all choices of k of a task's n rewards, given side by side in ascending order.

    >>> best_at_k(np.array([0.0, 0.5, 1.0]), np.array([3]), 2).round(4).tolist()
    [0.8333]
    """
    if k < 1 or np.any(n < k):
        raise ValueError(f"needs 1 <= k <= n, got k={k}")
    if not len(n):
        return np.zeros(0)
    tables = {int(size): _best_weights(int(size), k) for size in np.unique(n)}
    weights = np.concatenate([tables[int(size)] for size in n])
    return np.add.reduceat(weights * rewards, np.concatenate([[0], np.cumsum(n)[:-1]]))


def _best_weights(n: int, k: int) -> Floats:
    """Return the chance of the i-th smallest of n to be the largest of k: C(i-1, k-1) / C(n, k), from the top down."""
    ranks = np.arange(n, k, -1, dtype=np.float64)
    falling = np.concatenate([[k / n], k / n * np.cumprod((ranks - k) / (ranks - 1))])
    return np.concatenate([np.zeros(k - 1), falling[::-1]])
