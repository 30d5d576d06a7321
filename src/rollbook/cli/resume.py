"""`rollbook resume`: finish exactly what a run is missing."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.showing import watched
from rollbook.core.json import JSON


@gathered("given", o.changes)
def command(run: o.Begun, given: dict[str, JSON], retry: o.Retry = None, json: o.Json = False) -> None:
    from rollbook.collect.run import resume

    watched(run, lambda display: resume(run, given, retry, display), json)
