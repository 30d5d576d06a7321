"""What all commands that work share: the display while it runs, the numbers afterwards, however it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.cli.display import display
from rollbook.cli.numbers import show_numbers
from rollbook.collect.progress import Display
from rollbook.errors import Shortfall

if TYPE_CHECKING:
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
    finally:
        screen.stop()
    show_numbers(result.report, as_json)
    _next(f"every rollout is in {run}/journals; more samples: rollbook extend {run} -k N")


def _show_short(run: str | Path, as_json: bool) -> None:
    from rollbook.collect.report import report

    show_numbers(report(run, write=False), as_json)
    _next(f"rollbook resume {run}")


def _next(words: str) -> None:
    print(f"next: {words}", file=sys.stderr)
