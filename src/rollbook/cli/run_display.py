"""What all commands that run rollouts show: progress during the work, and the numbers afterwards, however it ended.

Progress is on standard error: a live panel on a terminal, a plain line every ten seconds elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rollbook.book import Book
from rollbook.cli.report_tables import show_numbers
from rollbook.core import FAILURE_KINDS, format_cost
from rollbook.engine import Display, LineDisplay, Progress
from rollbook.errors import Shortfall, Stopped

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from rollbook.engine import RunResult
    from rollbook.reports import Report


PLAIN_LINE_EVERY_S = 10.0


def make_display() -> Display:
    """Return the display that fits standard error."""
    return LiveDisplay() if sys.stderr.isatty() else PlainDisplay()


class PlainDisplay(LineDisplay):
    """Lines for logs and pipes: the first at once, then one every ten seconds, and the last numbers at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(format_progress, PLAIN_LINE_EVERY_S, clock)

    def start(self, total: int) -> None:
        """Print how many rollouts there are to do."""
        self.note(f"{total} rollout{'' if total == 1 else 's'} to do")
        self._next = self._clock() + PLAIN_LINE_EVERY_S

    def note(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stderr, flush=True)


class LiveDisplay:
    """A panel that redraws itself in place."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def start(self, total: int) -> None:
        """Open the panel."""
        from rich.console import Console
        from rich.live import Live

        first = Progress(requested=total, pending=total)
        self._live = Live(make_panel(first), console=Console(stderr=True), refresh_per_second=4)
        self._live.start()

    def update(self, progress: Progress) -> None:
        """Put new numbers into the panel."""
        if self._live is not None:
            self._live.update(make_panel(progress))

    def note(self, line: str) -> None:
        """Print a line above the panel."""
        if self._live is None:
            print(line, file=sys.stderr, flush=True)
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

    ended = progress.scored + sum(progress.failed.values())
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=max(progress.requested, 1), completed=ended, width=40))
    for group in _list_facts(progress):
        grid.add_row("  ".join(f"{name} {value}".strip() for name, value in group))
    return grid


def _list_facts(progress: Progress) -> list[list[tuple[str, str]]]:
    """Return counts, pace and times that are known; without pace once nothing is pending."""
    counts = [
        ("scored", f"{progress.scored}/{progress.requested}"),
        ("failed", _format_failures(progress.failed)),
        ("pending", str(progress.pending)),
        *([("mean reward", f"{progress.mean_reward:.3f}")] if progress.mean_reward is not None else []),
        *([("cost", format_cost(progress.cost))] if progress.cost is not None else []),
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
    return [counts, pace, times, *trouble] if progress.pending else [counts, times, *trouble]


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


REMOTE_PREFIXES = ("http://", "https://", "gym:", "gym+")


def run_with_display(run: str | Path, work: Callable[[Display], RunResult], as_json: bool) -> None:
    """Do the work under a display, then show the numbers; a shortfall is shown too and then raised again."""
    display = make_display()
    try:
        result = work(display)
    except Shortfall:
        display.stop()
        _show_shortfall(run, as_json)
        raise
    except KeyboardInterrupt:  # before the work began or while it ended: in between, the worker drains
        if Path(run, "run.json").exists():
            raise Stopped(f"interrupted; go on with `rollbook resume {quote(str(run))}`") from None
        raise
    finally:
        display.stop()
    show_numbers(result.report, as_json)
    samples = max(part.samples[1] for part in Book(run).plan.parts)
    _print_notes(
        f"every rollout: {run}/journals/*.jsonl",
        f"more samples:  rollbook extend {quote(str(run))} -k {2 * samples}",
    )


def _show_shortfall(run: str | Path, as_json: bool) -> None:
    from rollbook.reports import make_report

    report = make_report(run, write=False)
    show_numbers(report, as_json)
    failures = any(Path(run, "journals").glob("*.failures.jsonl"))
    where = [f"every failed attempt: {run}/journals/*.failures.jsonl"] if failures else []
    _print_notes(*where, *suggest_commands(run, report))


def suggest_commands(run: str | Path, report: Report) -> list[str]:
    """Return the commands that complete a run; they depend on the kinds of failure."""
    named, verdicts = quote(str(run)), {kind for kind in report.failed if _fails_in_verifier(kind)}
    specs = [spec.spec for spec in Book(run).manifest.environments.values()] if verdicts else []
    if any(spec.startswith(REMOTE_PREFIXES) for spec in specs):
        verdicts = set()  # their sessions are over: only another rollout can be verified
    data = [kind for kind in sorted(report.failed) if FAILURE_KINDS[kind].side == "data" and kind not in verdicts]
    ways = []
    if report.pending or any(FAILURE_KINDS[kind].side == "infra" for kind in report.failed):
        dearer = _choose_max_cost(run, report)
        ways.append(f"go on: rollbook resume {named} {dearer}" if dearer else f"try again: rollbook resume {named}")
    if data:
        ways.append(f"try again: rollbook resume {named}{''.join(f' --retry {kind}' for kind in data)}")
    if verdicts:
        mended = f"with the verifier mended: rollbook reverify {named} --env {quote(specs[0])} --only failed"
        ways.append(mended if len(specs) == 1 else f"verify again: rollbook reverify {named} --only failed")
    return ways


def _choose_max_cost(run: str | Path, report: Report) -> str:
    """Return the option with a higher limit for a run that has cost more than it may; else nothing."""
    limit = Book(run).last_settings().max_cost if report.cost is not None else None
    if limit is None or report.cost is None or report.cost <= limit:
        return ""
    return f"--max-cost {2 * limit:.10g}" if 2 * limit > report.cost else f"--max-cost {2 * report.cost:.3g}"


def _fails_in_verifier(kind: str) -> bool:
    """Whether another verifier can score the answer without asking the model again; a judge is asked by `resume`."""
    return FAILURE_KINDS[kind].in_verification and FAILURE_KINDS[kind].side == "data"


def _print_notes(*lines: str) -> None:
    if lines:
        print(*lines, sep="\n", file=sys.stderr)
