"""What all commands that work share: the display while it runs, the numbers afterwards, however it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.cli.display import display
from rollbook.cli.numbers import show_numbers
from rollbook.collect.progress import Display
from rollbook.core.failure import KINDS
from rollbook.errors import Shortfall, Stopped

if TYPE_CHECKING:
    from rollbook.collect.report import Report
    from rollbook.collect.run import Result


def watched(run: str | Path, work: Callable[[Display], Result], as_json: bool) -> None:
    """Do the work under a display, then show the numbers; a shortfall is shown too and then goes on its way."""
    screen = display()
    try:
        result = work(screen)
    except Shortfall:
        screen.stop()
        _show_short(run, as_json)
        raise
    except KeyboardInterrupt:  # before the work began or while it ended: in between, the worker drains
        if Path(run, "run.json").exists():
            raise Stopped(f"interrupted; go on with `rollbook resume {run}`") from None
        raise
    finally:
        screen.stop()
    show_numbers(result.report, as_json)
    _say(f"every rollout: {run}/journals/*.jsonl", f"more samples:  rollbook extend {run} -k {2 * _samples(run)}")


def _show_short(run: str | Path, as_json: bool) -> None:
    from rollbook.collect.report import report

    made = report(run, write=False)
    show_numbers(made, as_json)
    _say(f"every failed attempt: {run}/journals/*.failures.jsonl", f"try again: {way_on(run, made)}")


def way_on(run: str | Path, report: Report) -> str:
    """The command that tries what is missing; what is not the infrastructure's fault is tried only when named."""
    data = any(KINDS[kind].side == "data" for kind in report.failed)
    return f"rollbook resume {run}{' --retry all' if data else ''}"


def _samples(run: str | Path) -> int:
    from rollbook.book.book import Book

    return max(part.samples[1] for part in Book(run).plan.parts)


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)
