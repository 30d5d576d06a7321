"""Progress on standard error: a live panel on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rollbook.collect.progress import Display, Progress

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

PLAIN_EVERY_S = 10.0


def display() -> Display:
    """The one that fits where standard error goes."""
    return LiveDisplay() if sys.stderr.isatty() else PlainDisplay()


class PlainDisplay:
    """Lines for logs and pipes: the first at once, then one every ten seconds, and the last word at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0
        self._unseen: Progress | None = None

    def start(self, total: int) -> None:
        """Say how much there is to do."""
        self.note(f"{total} rollouts to do")
        self._next = self._clock() + PLAIN_EVERY_S

    def update(self, progress: Progress) -> None:
        """Show these numbers when the next line is due."""
        self._unseen = progress
        if self._clock() >= self._next:
            self._next = self._clock() + PLAIN_EVERY_S
            self._show()

    def note(self, line: str) -> None:
        """Say something once."""
        print(line, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Show what has not been shown."""
        self._show()

    def _show(self) -> None:
        if self._unseen is not None:
            self.note(line_of(self._unseen))
        self._unseen = None


class LiveDisplay:
    """A panel that redraws itself in place."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def start(self, total: int) -> None:
        """Open the panel."""
        from rich.console import Console
        from rich.live import Live

        first = Progress(requested=total, pending=total)
        self._live = Live(panel_of(first), console=Console(stderr=True), refresh_per_second=4)
        self._live.start()

    def update(self, progress: Progress) -> None:
        """Put new numbers into the panel."""
        if self._live is not None:
            self._live.update(panel_of(progress))

    def note(self, line: str) -> None:
        """Say something above the panel."""
        if self._live is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._live.console.print(line, markup=False, highlight=False)

    def stop(self) -> None:
        """Leave the last numbers standing."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def line_of(progress: Progress) -> str:
    """The numbers on one line."""
    return " · ".join(f"{name} {value}".strip() for group in _facts(progress) for name, value in group)


def panel_of(progress: Progress) -> Table:
    """The numbers as a bar and rows of facts."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    ended = progress.scored + sum(progress.failed.values())
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=max(progress.requested, 1), completed=ended, width=40))
    for group in _facts(progress):
        grid.add_row("  ".join(f"{name} {value}".strip() for name, value in group))
    return grid


def _facts(progress: Progress) -> list[list[tuple[str, str]]]:
    """What has been done, at what pace, and where the time goes; what is over has no pace."""
    mean = "-" if progress.mean_reward is None else f"{progress.mean_reward:.3f}"
    counts = [
        ("scored", f"{progress.scored}/{progress.requested}"),
        ("failed", _failures(progress.failed)),
        ("pending", str(progress.pending)),
        ("mean reward", mean),
    ]
    pace = [
        ("", f"{progress.rate:.1f}/s"),
        ("left", duration(progress.eta_s)),
        ("in flight", f"{progress.in_flight}/{progress.concurrency}"),
    ]
    times = [
        ("model", f"{progress.model_ms:.0f} ms"),
        ("verify", f"{progress.verify_ms:.1f} ms"),
        ("loop lag", f"{progress.loop_lag_ms:.1f} ms"),
        ("after", duration(progress.seconds)),
    ]
    return [counts, pace, times] if progress.pending else [counts, times]


def _failures(failed: dict[str, int]) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(failed.items()))
    return f"{sum(failed.values())} ({kinds})" if kinds else "0"


def duration(seconds: float | None) -> str:
    """Seconds as people say them.

    >>> duration(75), duration(4000), duration(None)
    ('1m 15s', '1h 06m', '?')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
