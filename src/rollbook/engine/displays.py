"""Displays of progress for people: a live panel on a terminal, a bar that updates itself in a notebook.

The command line draws the panel from what its workers report. A call from Python draws through hooks, in a thread of
their own: a notebook whose front end is slow or gone does not slow down the run.
"""

from __future__ import annotations

import importlib
import secrets
import sys
from html import escape
from typing import TYPE_CHECKING, Any

from rollbook.core import format_cost
from rollbook.engine.hooks import Hooks
from rollbook.engine.progress import Progress

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from rollbook.reports import Run


class LiveDisplay:
    """A panel that redraws itself in place."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def start(self, total: int, pending: int | None = None) -> None:
        """Open the panel."""
        from rich.console import Console
        from rich.live import Live

        first = Progress(requested=total, pending=total if pending is None else pending)
        self._live = Live(make_panel(first), console=Console(stderr=True), refresh_per_second=4)
        self._live.start()

    def update(self, progress: Progress) -> None:
        """Put new numbers into the panel."""
        if self._live is not None:
            self._live.update(make_panel(progress))

    def note(self, line: str) -> None:
        """Print a line above the panel."""
        if self._live is None:
            print(line, file=sys.stderr)  # noqa: T201 - a display
        else:
            self._live.console.print(line, markup=False, highlight=False)

    def stop(self) -> None:
        """Close the panel; its last numbers stay on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def format_progress(progress: Progress) -> str:
    """Return the numbers on one line."""
    return " · ".join(f"{name} {value}".strip() for group in _list_facts(progress) for name, value in group)


def make_panel(progress: Progress) -> Table:
    """Return the numbers as a bar and rows of facts."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=max(progress.requested, 1), completed=progress.done, width=40))
    for group in _list_facts(progress):
        grid.add_row("  ".join(f"{name} {value}".strip() for name, value in group))
    return grid


def _list_facts(progress: Progress, ended: bool = False) -> list[list[tuple[str, str]]]:
    """Return counts, pace and times that are known; without pace once nothing is pending or the work has ended."""
    counts = [
        ("scored", f"{progress.scored}/{progress.requested}"),
        ("failed", _format_failures(progress.failed)),
        ("pending", str(progress.pending)),
        *([("mean reward", f"{progress.mean_reward:.3f}")] if progress.mean_reward is not None else []),
        *([("cost", format_cost(progress.cost))] if progress.cost is not None else []),
        *([("cached", f"{progress.cached_share:.0%}")] if progress.cached_share is not None else []),
    ]
    pace = [
        ("", f"{progress.rate:.1f}/s"),
        ("left", format_duration(progress.eta_s)),
        ("in flight", f"{progress.in_flight}/{progress.concurrency}"),
    ]
    measured = (
        ("model", progress.model_ms, 0),
        ("verify", progress.verify_ms, 1),
        ("loop lag", progress.loop_lag_ms, 1),
    )
    times = [(name, f"{value:.{digits}f} ms") for name, value, digits in measured if value is not None]
    times.append(("after", format_duration(progress.seconds)))
    trouble = [[("", progress.outage)]] if progress.outage else []
    return [counts, pace, times, *trouble] if progress.pending and not ended else [counts, times, *trouble]


def _format_failures(failed: dict[str, int]) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(failed.items()))
    return f"{sum(failed.values())} ({kinds})" if kinds else "0"


def format_duration(seconds: float | None) -> str:
    """Return seconds as text.

    >>> format_duration(75), format_duration(4000), format_duration(None)
    ('1m 15s', '1h 06m', '?')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def make_progress_hooks() -> Hooks:
    """Return the hooks that show progress to a caller from Python: in a notebook or on a terminal; else none."""
    if is_notebook():
        bar = NotebookBar()
        return Hooks(on_progress=bar.show, on_end=bar.finish, name="the progress bar")
    if sys.stderr.isatty():
        panel = TerminalPanel()
        return Hooks(on_progress=panel.show, on_end=panel.finish, name="the progress display")
    return Hooks()


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; IPython is not imported for that."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class TerminalPanel:
    """The live panel of the command line, for scripts."""

    def __init__(self) -> None:
        self._display = LiveDisplay()
        self._is_open = False

    def show(self, progress: Progress) -> None:
        """Draw the panel, which opens with the first numbers."""
        if not self._is_open:
            self._display.start(progress.requested)
            self._is_open = True
        self._display.update(progress)

    def finish(self, run: Run) -> None:
        """Close the panel; the last numbers stay."""
        self._display.stop()


class NotebookBar:
    """A bar below the cell that runs; every update replaces the one before."""

    def __init__(self) -> None:
        self._id = secrets.token_hex(8)
        self._is_shown = False
        self._last: Progress | None = None

    def show(self, progress: Progress, ended: bool = False) -> None:
        """Publish the numbers as text and as HTML; a front end shows what it can."""
        self._last = progress
        shown = {"text/plain": format_progress(progress), "text/html": make_html(progress, ended)}
        publish: Any = importlib.import_module("IPython.display").display
        publish(shown, raw=True, display_id=self._id, update=self._is_shown)
        self._is_shown = True

    def finish(self, run: Run) -> None:
        """Publish the last numbers again, without the pace: nothing goes on."""
        if self._last is not None:
            self.show(self._last, ended=True)


def make_html(progress: Progress, ended: bool = False) -> str:
    """Return a bar and the facts below it as HTML; once a run has ended, its bar no longer moves.

    >>> make_html(Progress(requested=4, scored=4, seconds=2), ended=True)
    '<progress max="4" value="4"></progress><br>scored 4/4 &nbsp; failed 0 &nbsp; pending 0<br>after 2s'
    """
    lines = [
        " &nbsp; ".join(escape(f"{name} {value}".strip()) for name, value in group)
        for group in _list_facts(progress, ended)
    ]
    bar = f'<progress max="{max(progress.requested, 1)}" value="{progress.done}"></progress>'
    return "<br>".join([bar, *lines])
