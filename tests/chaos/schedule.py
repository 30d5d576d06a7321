"""What goes wrong, and when: a list of faults that a seed determines completely.

Targets are fractions: of the workers, processes or files that there are when the time comes.
"""

from __future__ import annotations

import random
from typing import NamedTuple

WINDOW_S = 20.0
STALE_S = 4.0
"""The silence after which the workers of this test take each other for dead; 180 s otherwise."""
LATE = 0.7
"""Bits are flipped in this last part of the window: workers stop at a damaged file, and nothing else would happen."""

WEIGHTS = {
    "kill worker": 4,
    "stop worker": 4,
    "terminate worker": 1,
    "kill environment process": 2,
    "stop environment process": 1,
    "kill zygote": 2,
    "stop zygote": 1,
    "kill endpoint": 1,
    "spoil endpoint": 3,
    "fill disk": 2,
    "fail system calls": 3,
    "set wall clock": 1,
    "advance monotonic clock": 1,
    "tear journal": 3,
    "flip bit": 3,
    "read status": 1,
}


class Fault(NamedTuple):
    """One fault: when it begins, how long it lasts, and fractions that choose its target and its form."""

    at_s: float
    kind: str
    seconds: float
    target: float
    form: float
    place: float


def make_schedule(seed: int, window_s: float = WINDOW_S) -> list[Fault]:
    """Return the faults of a seed in the order of their times."""
    rng = random.Random(seed)
    count = rng.randint(8, 24)
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return sorted(_make_fault(rng, kind, window_s) for kind in kinds)


def _make_fault(rng: random.Random, kind: str, window_s: float) -> Fault:
    first = LATE * window_s if kind == "flip bit" else 1.0
    return Fault(
        round(rng.uniform(first, window_s), 2),
        kind,
        round(rng.uniform(0.2, 3 * STALE_S if kind == "stop worker" else STALE_S), 2),
        round(rng.random(), 4),
        round(rng.random(), 4),
        round(rng.random(), 4),
    )
