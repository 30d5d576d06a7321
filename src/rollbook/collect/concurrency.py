"""How many rollouts may be in flight: a fixed number, or one found by trying."""

from __future__ import annotations

import time
from collections.abc import Callable

from rollbook.errors import UsageError

START = 2
MOST = 4096
FILES_SPARE = 128


class Fixed:
    """Always the same."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def finished(self, seconds: float) -> None:
        """A call was answered."""

    def refused(self) -> None:
        """The endpoint said it has enough, or did not answer."""


class Auto:
    """Slow start, then additive increase and multiplicative decrease.

    Judged in windows of one limit's worth of answers: while doubling brings more answers per second it goes on; after
    that the limit creeps up, and falls when answers take twice their best time without there being more of them, or at
    once when the endpoint refuses.
    """

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = min(START, most)
        self._most, self._clock = most, clock
        self._doubling = True
        self._rate = 0.0
        self._best_s = float("inf")
        self._window()

    def _window(self) -> None:
        self._since, self._answers, self._seconds, self._refused = self._clock(), 0, 0.0, False

    def finished(self, seconds: float) -> None:
        """Count an answer; judge when the window is full."""
        self._answers += 1
        self._seconds += seconds
        if self._answers >= 2 * self.limit:
            self._judge()

    def _judge(self) -> None:
        elapsed = max(self._clock() - self._since, 1e-9)
        rate, mean_s = self._answers / elapsed, self._seconds / self._answers
        self._best_s = min(self._best_s, mean_s)
        better, slow = rate > 1.1 * self._rate, mean_s > 2 * self._best_s
        if self._doubling and better:
            self._set(self.limit * 2)
        elif slow and not better:
            self._doubling = False
            self._set(int(self.limit * 0.8))
        else:
            self._doubling = False
            self._set(self.limit + max(1, self.limit // 16))
        self._rate = rate
        self._window()

    def refused(self) -> None:
        """Fall at once, but only once a window: one overload answers many calls at the same time."""
        self._doubling = False
        if not self._refused:
            self._set(self.limit // 2)
            self._window()
            self._refused = True

    def _set(self, limit: int) -> None:
        self.limit = max(1, min(self._most, limit))


def concurrency(wanted: int | str, say: Callable[[str], None]) -> Fixed | Auto:
    """The limiter that was asked for, within what the file-descriptor limit allows."""
    if wanted == "auto":
        return Auto(files_allow(MOST, say, quiet=True))
    if not isinstance(wanted, int) or wanted < 1:
        raise UsageError(f"--concurrency {wanted}: give a number from 1 on, or auto")
    return Fixed(files_allow(wanted, say))


def files_allow(wanted: int, say: Callable[[str], None], *, quiet: bool = False) -> int:
    """Raise the soft limit of open files for so many connections; where that is not enough, cap and say so."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + FILES_SPARE
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    ceiling = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, ceiling), hard))
    capped = max(1, max(soft, ceiling) - FILES_SPARE)
    if capped < wanted and not quiet:
        say(f"concurrency {wanted} needs {need} open files, the hard limit is {hard}: running {capped} at a time")
    return min(wanted, capped)
