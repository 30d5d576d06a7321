"""best@k: the expected maximum of k rewards, where rewards are more than right or wrong. It is not pass@k."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.stats.estimators import Floats


def best_at_k(rewards: Floats, n: NDArray[np.integer], k: int) -> Floats:
    """The expected maximum over all choices of k of a task's n rewards, which lie side by side in ascending order.

    >>> best_at_k(np.array([0.0, 0.5, 1.0]), np.array([3]), 2).round(4).tolist()
    [0.8333]
    """
    if k < 1 or np.any(n < k):
        raise ValueError(f"needs 1 <= k <= n, got k={k}")
    if not len(n):
        return np.zeros(0)
    tables = {int(size): _weights(int(size), k) for size in np.unique(n)}
    weights = np.concatenate([tables[int(size)] for size in n])
    return np.add.reduceat(weights * rewards, np.concatenate([[0], np.cumsum(n)[:-1]]))


def _weights(n: int, k: int) -> Floats:
    """The chance of the i-th smallest of n to be the largest of k: C(i-1, k-1) / C(n, k), from the top down."""
    ranks = np.arange(n, k, -1, dtype=np.float64)
    falling = np.concatenate([[k / n], k / n * np.cumprod((ranks - k) / (ranks - 1))])
    return np.concatenate([np.zeros(k - 1), falling[::-1]])
