"""`rollbook report`: the numbers of a run, from its files; a run that is not all scored exits like the run itself."""

from __future__ import annotations

import sys

from rollbook.cli import options as o
from rollbook.cli.numbers import show_numbers


def command(run: o.Run, json: o.Json = False) -> None:
    from rollbook.collect.report import keep, report
    from rollbook.collect.shortfall import shortfall

    made = report(run, write=False)
    show_numbers(made, json)
    try:
        keep(made)
    except OSError as error:  # a copy that one may only read has numbers too
        print(f"metrics.json was not written: {error.strerror}", file=sys.stderr)
    if made.scored < made.requested:
        raise shortfall(made)
