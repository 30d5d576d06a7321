"""What all commands that run rollouts show: progress during the work, and the numbers afterwards, however it ended.

Progress is on standard error: a live panel on a terminal, a plain line every ten seconds elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rollbook.book import Book
from rollbook.cli.report_tables import show_numbers
from rollbook.core import FAILURE_KINDS
from rollbook.engine import Display, LineDisplay, LiveDisplay, format_progress
from rollbook.errors import Shortfall, Stopped

if TYPE_CHECKING:
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

    def start(self, total: int, pending: int | None = None) -> None:
        """Print how many rollouts there are to do."""
        left = total if pending is None else pending
        self.note(f"{left} rollout{'' if left == 1 else 's'} to do")
        self._next = self._clock() + PLAIN_LINE_EVERY_S

    def note(self, line: str) -> None:
        """Print a line."""
        print(line, file=sys.stderr, flush=True)


HARBOR_PREFIX = "harbor:"
REMOTE_PREFIXES = ("http://", "https://", "gym:", "gym+")


def run_with_display(
    run: str | Path, work: Callable[[Display], RunResult], as_json: bool, log: Sequence[str] = ()
) -> None:
    """Do the work under a display, then show the numbers; a shortfall is shown too and then raised again.

    `log` are the names of trackers that follow the run.
    """
    display = observe(make_display(), run, log)
    try:
        result = work(display)
    except Shortfall:
        display.stop()
        _show_shortfall(run, as_json)
        raise
    except KeyboardInterrupt:  # before the work began or while it ended: in between, the worker drains
        if Path(run, "run.json").exists():
            raise Stopped(f"interrupted; continue with `rollbook resume {quote(str(run))}`") from None
        raise
    finally:
        display.stop()
    show_numbers(result.report, as_json)
    samples = max(part.samples[1] for part in Book(run).plan.parts)
    _print_notes(
        f"every rollout: {run}/journals/*.jsonl",
        f"more samples:  rollbook extend {quote(str(run))} -k {2 * samples}",
    )


def observe(display: Display, run: str | Path, log: Sequence[str]) -> Display:
    """Return a display whose run is followed by trackers; one that cannot be used is refused here."""
    if not log:
        return display
    from rollbook.engine import ObservedDisplay, make_observers

    return ObservedDisplay(display, make_observers(log, Path(run), display.note))


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
        ways.append(f"continue: rollbook resume {named} {dearer}" if dearer else f"try again: rollbook resume {named}")
    if data:
        ways.append(f"try again: rollbook resume {named}{''.join(f' --retry {kind}' for kind in data)}")
    if verdicts:
        fixed = f"after fixing the verifier: rollbook reverify {named} --env {quote(specs[0])} --only failed"
        ways.append(fixed if len(specs) == 1 else f"verify again: rollbook reverify {named} --only failed")
    if verdicts and any(spec.startswith(HARBOR_PREFIX) for spec in specs):
        ways.append("tests that share the agent's container cannot run again: after fixing them, start a new run")
    return ways


def _choose_max_cost(run: str | Path, report: Report) -> str:
    """Return the option with a higher limit for a run that has cost more than it may; else nothing."""
    cost = (report.cost or 0.0) + sum(use.cost or 0.0 for use in report.roles.values())
    limit = Book(run).last_settings().max_cost if cost else None
    if limit is None or cost <= limit:
        return ""
    return f"--max-cost {2 * limit:.10g}" if 2 * limit > cost else f"--max-cost {2 * cost:.3g}"


def _fails_in_verifier(kind: str) -> bool:
    """Whether another verifier can score the answer without asking the model again; a judge is asked by `resume`."""
    return FAILURE_KINDS[kind].in_verification and FAILURE_KINDS[kind].side == "data"


def _print_notes(*lines: str) -> None:
    if lines:
        print(*lines, sep="\n", file=sys.stderr)
