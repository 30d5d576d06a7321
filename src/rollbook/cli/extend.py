"""`rollbook extend`: more samples of every task, here or on the cluster the run was submitted to."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.onray import go_on_with_ray
from rollbook.cli.orders import Address, On, check_on, elsewhere
from rollbook.cli.showing import watched
from rollbook.core.json import JSON


@gathered("given", o.changes)
def command(
    run: o.Begun,
    samples: o.NewSamples,
    given: dict[str, JSON],
    on: On = None,
    address: Address = None,
    json: o.Json = False,
) -> None:
    from rollbook.collect.run import extend

    check_on(on, address)
    there, given = elsewhere(run, on, given)
    if there == "ray":
        go_on_with_ray(run, given, json, retry=["none"], address=address, samples=samples)
        return
    if there:
        from rollbook.cli.submit import say, show_submission
        from rollbook.clusters.resuming import extend_there

        show_submission(extend_there(run, samples, given, say), json)
        return
    watched(run, lambda display: extend(run, samples, given, display), json)
