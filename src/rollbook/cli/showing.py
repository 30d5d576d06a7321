"""What all commands that work share: the display while it runs, the numbers afterwards, however it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rollbook.cli.display import display
from rollbook.cli.numbers import show_numbers
from rollbook.collect.progress import Display
from rollbook.core.failure import KINDS
from rollbook.errors import Shortfall, Stopped

if TYPE_CHECKING:
    from rollbook.book.book import Book
    from rollbook.collect.report import Report
    from rollbook.collect.run import Result

VERDICTS = {"verifier_error", "verifier_timeout", "invalid_reward"}
"""Failures that another verifier can mend without asking the model again."""

FAR = ("http://", "https://", "gym:", "gym+")


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
            raise Stopped(f"interrupted; go on with `rollbook resume {quote(str(run))}`") from None
        raise
    finally:
        screen.stop()
    show_numbers(result.report, as_json)
    _say(
        f"every rollout: {run}/journals/*.jsonl",
        f"more samples:  rollbook extend {quote(str(run))} -k {2 * _samples(run)}",
    )


def _show_short(run: str | Path, as_json: bool) -> None:
    from rollbook.collect.report import report

    made = report(run, write=False)
    show_numbers(made, as_json)
    _say(f"every failed attempt: {run}/journals/*.failures.jsonl", *ways_on(run, made))


def ways_on(run: str | Path, report: Report) -> list[str]:
    """The commands that bring what is missing: each kind of failure has its own."""
    named, verdicts = quote(str(run)), VERDICTS & set(report.failed)
    specs = [spec.spec for spec in _book(run).manifest.environments.values()] if verdicts else []
    if any(spec.startswith(FAR) for spec in specs):
        verdicts = set()  # their sessions are over: only another rollout can be verified
    data = [kind for kind in sorted(report.failed) if KINDS[kind].side == "data" and kind not in verdicts]
    ways = []
    if report.pending or any(KINDS[kind].side == "infra" for kind in report.failed):
        ways.append(f"try again: rollbook resume {named}")
    if data:
        ways.append(f"try again: rollbook resume {named}{''.join(f' --retry {kind}' for kind in data)}")
    if verdicts:
        mended = f"with the verifier mended: rollbook reverify {named} --env {quote(specs[0])} --only failed"
        ways.append(mended if len(specs) == 1 else f"verify again: rollbook reverify {named} --only failed")
    return ways


def _samples(run: str | Path) -> int:
    return max(part.samples[1] for part in _book(run).plan.parts)


def _book(run: str | Path) -> Book:
    from rollbook.book.book import Book

    return Book(run)


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)
