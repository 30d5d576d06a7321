"""How many rollouts are in flight: a fixed number, or the one at which the servers' throughput stops growing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from rollbook.errors import UsageError

START_LIMIT = 16
MAX_CONCURRENCY = 4096
SPARE_FILES = 128
OPEN_FILES = 65_536
"""The soft limit of open files that a worker sets where the hard limit allows it.

A rollout may need more than one descriptor: a container and each connection of a program have several.
"""

MIN_ANSWERS = 16
GROWTH = 1.05
"""While doubling the limit gives so much more throughput, it is doubled again."""
FAST_GROWTH, FAST_GAIN = 4.0, 2.5
"""It is even multiplied by four at the start, and again while that gives so much more."""
SLOW_GAIN = 1.5
"""Once doubling gives less than this, part of what is added may wait in the servers: its effect is awaited first."""
FIRST_STEP, SMALLEST_STEP, LARGEST_STEP = 1.25, 1.06, 1.5
"""By how much more, and how much less, is tried once the limit has stopped growing."""
CEILING_WINDOWS = 8
"""After so many windows without a refusal, more than the refused limit is tried again."""
MIN_REFUSALS, REFUSED_SHARE = 3, 0.05
"""So many attempts without an answer, and so many of the limit, within a window are an overload."""
RECENT_LIMITS = 8
"""A refusal is matched with the limit that its attempt began under, so many limits back."""
CLEAR_LOSS, CLEAR_STEP = 0.95, 1.015
"""Where a step loses this much, the peak is sharp: smaller ones show it as well, and cost less."""
MORE, AS_MUCH = 1.02, 0.995
"""A higher limit has to give more, a lower one only as much: what adds nothing only waits in the servers."""


class FixedLimit:
    """A constant limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def record_answer(self, began: float, tokens: int) -> None:
        """Ignore an answer."""

    def record_overload(self, began: float) -> None:
        """Ignore an overload."""


class Measured(NamedTuple):
    """The throughput that was measured with a limit."""

    limit: int
    throughput: float


class AdaptiveLimit:
    """Finds the limit at which throughput stops growing, and follows it.

    The throughput of a limit is that number of rollouts times the tokens each of them gets a second (Little's law):
    rollouts that have ended tell it long before as many have ended as are in flight, and however long they are. Only
    those count that began under the limit. It first grows by doubling while that gives more, then tries a little more
    and a little less in turn, in smaller steps the longer neither gives more. When the endpoint refuses calls, it
    returns at once to the last limit without many refusals, and stays below the refused one for a while.
    """

    def __init__(self, max_limit: int = MAX_CONCURRENCY, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_limit, self._clock = max_limit, clock
        self.limit = min(START_LIMIT, max_limit)
        self._before: Measured | None = None
        self._growing, self._factor, self._gain = True, FAST_GROWTH, FAST_GAIN
        self._probing, self._up, self._step, self._failed_probes = False, False, FIRST_STEP, 0
        self._ceiling, self._quiet_windows = max_limit, 0
        self._refusals: Counter[int] = Counter()
        self._ignored = 0
        self._start_window()
        self._limits = [(self._since, self.limit)]

    def _start_window(self) -> None:
        self._since, self._answers, self._tokens, self._seconds = self._clock(), 0, 0, 0.0

    def record_answer(self, began: float, tokens: int) -> None:
        """Count a rollout that was answered; adjust the limit when enough of them are known."""
        if self._ignored:
            self._ignored -= 1
            if not self._ignored:
                self._start_window()
            return
        if began < self._since:
            return
        self._answers += 1
        self._tokens += max(1, tokens)
        self._seconds += self._clock() - began
        if self._answers >= max(MIN_ANSWERS, self.limit // 2 if self._growing else 3 * self.limit // 2):
            self._refusals.clear()
            self._raise_ceiling()
            self._adjust(Measured(self.limit, self.limit * self._tokens / max(self._seconds, 1e-9)))

    def _adjust(self, now: Measured) -> None:
        if self._growing:
            self._grow(now)
        elif self._probing:
            self._end_probe(now)
        else:
            self._begin_probe(now)

    def _raise_ceiling(self) -> None:
        """Allow a little more after enough windows without a refusal: the endpoint may have grown."""
        self._quiet_windows += 1
        if self._quiet_windows % CEILING_WINDOWS == 0:
            self._ceiling = min(self._max_limit, round(self._ceiling * LARGEST_STEP) + 1)

    def _grow(self, now: Measured) -> None:
        """Multiply the limit while that gives more; else go back halfway, or all the way where it lost much."""
        before = self._before
        self._gain = now.throughput / before.throughput if before else FAST_GAIN
        if self._gain > GROWTH and now.limit < self._ceiling:
            self._before = now
            self._factor = FAST_GROWTH if self._factor == FAST_GROWTH and self._gain >= FAST_GAIN else 2.0
            self._set_limit(now.limit * self._factor, awaits_effect=self._gain < SLOW_GAIN)
            return
        self._growing, self._up = False, self._gain < CLEAR_LOSS
        if not before or self._gain > GROWTH:
            self._set_limit(now.limit)
        else:
            self._set_limit(before.limit if self._up else (before.limit * now.limit) ** 0.5)

    def _begin_probe(self, now: Measured) -> None:
        self._before, self._probing = now, True
        self._set_limit(now.limit * (self._step if self._up else 1 / self._step), awaits_effect=True)

    def _end_probe(self, now: Measured) -> None:
        """Continue in the direction if that is better, in larger steps; else return, and try the other one next."""
        assert self._before
        gain = now.throughput / self._before.throughput
        if gain > (MORE if self._up else AS_MUCH) and now.limit != self._before.limit:
            self._step, self._failed_probes = min(self._step**1.5, LARGEST_STEP) if gain > GROWTH else self._step, 0
            self._begin_probe(now)
            return
        self._failed_probes += 1
        if gain < CLEAR_LOSS:
            self._step = max(self._step**0.5, CLEAR_STEP)
        elif self._failed_probes % 2 == 0:
            self._step = max(self._step**0.5, min(self._step, SMALLEST_STEP))
        self._probing, self._up = False, not self._up
        self._set_limit(self._before.limit, awaits_effect=True)

    def record_overload(self, began: float) -> None:
        """Return to the last limit below the one under which too many attempts got no answer.

        Single errors happen at any load. A refusal counts for the limit that its attempt began under: it may come when
        the limit has grown further, and those of attempts that began under a higher one say nothing about this one.
        """
        refused = next((limit for since, limit in reversed(self._limits) if since <= began), None)
        if refused is None or refused > self.limit:
            return
        self._refusals[refused] += 1
        if self._refusals[refused] < max(MIN_REFUSALS, REFUSED_SHARE * refused):
            return
        lower = [limit for _, limit in self._limits if limit < refused]
        self._ceiling, self._quiet_windows = max(1, refused - 1), 0
        self._growing, self._probing, self._up = False, False, False
        self._set_limit(max(lower, default=refused // 2))
        del self._limits[:-1]
        self._refusals.clear()

    def _set_limit(self, limit: float, *, awaits_effect: bool = False) -> None:
        """Set the limit; what ends until as many are in flight tells nothing about it."""
        before, self.limit = self.limit, max(1, min(self._ceiling, round(limit)))
        self._ignored = abs(self.limit - before) if awaits_effect or self.limit < before else 0
        self._start_window()
        self._limits = [*self._limits[1 - RECENT_LIMITS :], (self._since, self.limit)]


def make_limiter(wanted: int | str, say: Callable[[str], None]) -> FixedLimit | AdaptiveLimit:
    """Return the requested limiter, within what the file-descriptor limit allows."""
    if wanted == "auto":
        return AdaptiveLimit(limit_by_open_files(MAX_CONCURRENCY, say, quiet=True))
    if not isinstance(wanted, int) or wanted < 1:
        raise UsageError(f"--concurrency {wanted}: give a number from 1 on, or auto")
    return FixedLimit(limit_by_open_files(wanted, say))


def limit_by_open_files(wanted: int, say: Callable[[str], None], *, quiet: bool = False) -> int:
    """Raise the soft limit of open files; if that is not enough for this many connections, cap and report it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_FILES
    if soft == resource.RLIM_INFINITY:
        return wanted
    soft = max(soft, need if hard == resource.RLIM_INFINITY else min(max(need, OPEN_FILES), hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    capped = max(1, soft - SPARE_FILES)
    if capped < wanted and not quiet:
        say(f"concurrency {wanted} needs {need} open files, the hard limit is {hard}: running {capped} at a time")
    return min(wanted, capped)
