"""`rollbook work`: one more worker for a run."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.showing import watched
from rollbook.core.json import JSON


@gathered("given", o.changes)
def command(run: o.Begun, given: dict[str, JSON], json: o.Json = False) -> None:
    from rollbook.collect.run import work

    watched(run, lambda display: work(run, given, display), json)
