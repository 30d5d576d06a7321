"""Users that nobody is: as root, every guest gets one of its own, since the kernel counts processes by user."""

from __future__ import annotations

import random
import threading
from pathlib import Path

FIRST, PAST = 0x4000_0000, 0x7000_0000
FEW_FIRST, FEW_PAST = 61_000, 65_000


class Uids:
    """One number after another, from a random one on: other sandboxes of this machine draw from the same range."""

    def __init__(self) -> None:
        self._first, self._past = uid_range()
        self._next = random.randrange(self._first, self._past)
        self._lock = threading.Lock()

    def next(self) -> int:
        """A user that no other guest has."""
        with self._lock:
            uid = self._next
            self._next = uid + 1 if uid + 1 < self._past else self._first
        return uid


def uid_range() -> tuple[int, int]:
    """Far from every real user; inside a container that has only the first 65,536, at their end."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return FEW_FIRST, FEW_PAST
    wide = any(int(first) <= FIRST and int(first) + int(count) >= PAST for first, _, count in map(str.split, lines))
    return (FIRST, PAST) if wide else (FEW_FIRST, FEW_PAST)
