"""`rollbook extend`: more samples of every task, here or on the cluster the run was submitted to."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.orders import On, elsewhere
from rollbook.cli.showing import watched
from rollbook.core.json import JSON


@gathered("given", o.changes)
def command(run: o.Begun, samples: o.NewSamples, given: dict[str, JSON], on: On = None, json: o.Json = False) -> None:
    from rollbook.collect.run import extend

    there, given = elsewhere(run, on, given)
    if there:
        from rollbook.cli.submit import say, show_submission
        from rollbook.clusters.resuming import extend_there

        show_submission(extend_there(run, samples, given, say), json)
        return
    watched(run, lambda display: extend(run, samples, given, display), json)
