"""What `resume` and `extend` do with a run on Ray: go on as it was started, here or with a foreman on the cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.cli.showing import watched
from rollbook.core.json import JSON

if TYPE_CHECKING:
    from rollbook.collect.progress import Display
    from rollbook.collect.run import Result


def go_on_with_ray(
    run: Path,
    given: dict[str, JSON],
    json: bool,
    *,
    retry: list[str] | None,
    cluster: Path | None = None,
    address: str | None = None,
    samples: int | None = None,
) -> None:
    """Work off what is missing, or leave it to a foreman; where nothing is, say what there is."""
    from rollbook.cli.submit import say, show_submission
    from rollbook.clusters.profile import read_profile
    from rollbook.clusters.ray.again import Again, leave_again, stays, work_again
    from rollbook.collect.run import resume

    profile = read_profile(cluster) if cluster else None
    again = Again(given=given, retry=retry, profile=profile, address=address, samples=samples)

    def work(display: Display) -> Result:
        return work_again(run, again, display) or resume(run, {}, retry, display)

    if not stays(run):
        watched(run, work, json)
        return
    sent = leave_again(run, again, say)
    if sent is not None:
        show_submission(sent, json)
        return
    print("nothing is left to do", file=sys.stderr)
    watched(run, lambda display: resume(run, {}, retry, display), json)
