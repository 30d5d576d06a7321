"""`rollbook report`: the numbers of a run, from its files; a run that is not all scored exits like the run itself."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.numbers import show_numbers


def command(run: o.Run, json: o.Json = False) -> None:
    from rollbook.collect.report import report
    from rollbook.collect.shortfall import shortfall

    made = report(run)
    show_numbers(made, json)
    if made.scored < made.requested:
        raise shortfall(made)
