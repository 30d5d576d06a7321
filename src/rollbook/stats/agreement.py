"""How far two raters agree, such as a judge and people: the share of equal scores, Cohen's kappa, correlations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np


class RatedItem(NamedTuple):
    """The scores that two raters gave one thing, each from 0 to `scale`."""

    first: float
    second: float
    scale: int = 1


class RaterAgreement(msgspec.Struct, frozen=True):
    """Two raters' scores of the same things. A number that is undefined (all scores equal) is None.

    `agreement` is the share of `items` whose scores are taken for equal. `kappa` is weighted by the squared distance of
    the scores as shares of their scales.
    The correlations are over the `subjects`, with one number from each rater.
    """

    subjects: int
    items: int
    agreement: float
    kappa: float | None
    pearson: float | None
    spearman: float | None

    def describe(self) -> str:
        """Return the numbers in words.

        >>> RaterAgreement(3, 4, 0.75, 0.5, None, None).describe()
        'judge and people: 75% of 4 scores equal, kappa 0.500, over 3 answers correlation - (rank -)'
        """
        kappa, pearson, spearman = (
            "-" if value is None else f"{value:.3f}" for value in (self.kappa, self.pearson, self.spearman)
        )
        shares = f"{self.agreement:.0%} of {self.items} scores equal, kappa {kappa}"
        return f"judge and people: {shares}, over {self.subjects} answers correlation {pearson} (rank {spearman})"


def compare_raters(
    items: Sequence[RatedItem], subjects: Sequence[tuple[float, float]], agreement: float
) -> RaterAgreement:
    """Compare two raters by their scores of items, and by one number for each subject."""
    return RaterAgreement(
        len(subjects), len(items), agreement, compute_kappa(items), correlate(subjects), correlate_ranks(subjects)
    )


def compute_kappa(items: Sequence[RatedItem]) -> float | None:
    """Return Cohen's kappa, weighted by squared distance; of scores 0 and 1 that is the plain one.

    What chance gives is computed for each scale by itself: scores of a longer scale are higher for both raters.

    >>> compute_kappa([RatedItem(1, 1), RatedItem(0, 0), RatedItem(1, 0), RatedItem(0, 0)])
    0.5
    """
    observed = sum(((item.first - item.second) / item.scale) ** 2 for item in items)
    by_scale: dict[int, list[RatedItem]] = {}
    for item in items:
        by_scale.setdefault(item.scale, []).append(item)
    expected = sum(_expect_distance(scale, same) for scale, same in by_scale.items())
    return None if not expected else 1 - observed / expected


def _expect_distance(scale: int, items: Sequence[RatedItem]) -> float:
    """Return the sum of squared distances if the scores of one rater were assigned to the items by chance."""
    first, second = Counter(item.first for item in items), Counter(item.second for item in items)
    pairs = sum(((a - b) / scale) ** 2 * n * m for a, n in first.items() for b, m in second.items())
    return pairs / len(items)


def correlate(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation.

    >>> correlate([(0.0, 0.0), (0.5, 1.0), (1.0, 2.0)])
    1.0
    """
    values = np.array(pairs, np.float64)
    if len(values) < 2 or np.ptp(values[:, 0]) == 0 or np.ptp(values[:, 1]) == 0:
        return None
    return round(float(np.corrcoef(values[:, 0], values[:, 1])[0, 1]), 12)


def correlate_ranks(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's correlation: that of ranks, equal values having the mean of theirs.

    >>> correlate_ranks([(0.0, 0.0), (0.1, 5.0), (0.9, 6.0)])
    1.0
    """
    return correlate(list(zip(*(_rank([pair[at] for pair in pairs]) for at in (0, 1)), strict=True)))


def _rank(values: Sequence[float]) -> list[float]:
    _, inverse, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means = ends - (counts - 1) / 2
    return [float(rank) for rank in means[inverse]]
