"""`rollbook extend`: more samples of every task."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.showing import watched
from rollbook.core.json import JSON


@gathered("given", o.changes)
def command(run: o.Begun, samples: o.NewSamples, given: dict[str, JSON], json: o.Json = False) -> None:
    from rollbook.collect.run import extend

    watched(run, lambda display: extend(run, samples, given, display), json)
