"""Counts since they were last asked for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

Counts = dict[str, float]


class Tally:
    """What happened, by name; many threads add to it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, amount: float = 1) -> None:
        """One more of these."""
        with self._lock:
            self._counts[name] += amount  # type: ignore[assignment] # a Counter holds any number

    def take(self) -> Counts:
        """All of it; what is counted from here on is new."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return dict(taken)


def total(counts: list[Mapping[str, float]]) -> Counts:
    """The sum of several."""
    names = sorted({name for one in counts for name in one})
    return {name: sum(one.get(name, 0) for one in counts) for name in names}
