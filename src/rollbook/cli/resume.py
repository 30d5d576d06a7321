"""`rollbook resume`: finish exactly what a run is missing, here or on the cluster it was submitted to."""

from __future__ import annotations

import sys
from pathlib import Path

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.onray import go_on_with_ray
from rollbook.cli.orders import Address, Cluster, On, check_on, elsewhere
from rollbook.cli.showing import watched
from rollbook.core.json import JSON
from rollbook.errors import UsageError


@gathered("given", o.changes)
def command(
    run: o.Begun,
    given: dict[str, JSON],
    retry: o.Retry = None,
    on: On = None,
    address: Address = None,
    cluster: Cluster = None,
    json: o.Json = False,
) -> None:
    from rollbook.collect.run import resume

    check_on(on, address)
    there, given = elsewhere(run, on, given)
    if there == "ray":
        go_on_with_ray(run, given, json, retry=retry, cluster=cluster, address=address)
        return
    if there:
        resume_there(run, given, retry, cluster, json)
        return
    if cluster is not None:
        raise UsageError(f"--cluster {cluster}: goes with --on slurm or --on ray")
    watched(run, lambda display: resume(run, given, retry, display), json)


def resume_there(run: Path, given: dict[str, JSON], retry: list[str] | None, cluster: Path | None, json: bool) -> None:
    """Submit what is missing; where nothing is, say what there is."""
    from rollbook.cli.submit import say, show_submission
    from rollbook.clusters.profile import read_profile
    from rollbook.clusters.resuming import resubmit
    from rollbook.collect.run import resume

    sent = resubmit(run, given, retry, read_profile(cluster) if cluster else None, say)
    if sent is not None:
        show_submission(sent, json)
        return
    print("nothing is left to do", file=sys.stderr)
    watched(run, lambda display: resume(run, {}, retry, display), json)
