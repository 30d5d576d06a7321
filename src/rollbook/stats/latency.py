"""Latencies in a fixed histogram: constant memory, mergeable, quantiles within a few percent."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LOWEST_S, DECADES, STEPS = 1e-3, 8, 25


class Histogram:
    """Counts by the logarithm of the seconds, from a millisecond to a day; 25 steps to a factor of ten."""

    def __init__(self) -> None:
        self.counts = np.zeros(DECADES * STEPS, np.int64)

    def add(self, seconds: NDArray[np.float64]) -> None:
        """Count a batch."""
        steps = np.floor(np.log10(np.maximum(seconds, LOWEST_S) / LOWEST_S) * STEPS).astype(np.int64)
        self.counts += np.bincount(np.minimum(steps, len(self.counts) - 1), minlength=len(self.counts))

    def merge(self, other: Histogram) -> None:
        """Count what the other counted too."""
        self.counts += other.counts

    def quantile(self, share: float) -> float | None:
        """The latency that this share stays below, to about 5%; None if nothing was counted."""
        total = int(self.counts.sum())
        if not total:
            return None
        step = int(np.searchsorted(np.cumsum(self.counts), math.ceil(share * total)))
        return float(LOWEST_S * 10 ** ((step + 0.5) / STEPS))
