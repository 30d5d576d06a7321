"""A look at a run: how far its book is, how fast it gets on, how its jobs stand. A run elsewhere is asked there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollbook.book.status import Status, read_status
from rollbook.clusters import slurm
from rollbook.clusters.far import Asked, far_of
from rollbook.clusters.pace import Pace, pace
from rollbook.clusters.ray.cluster import Unreachable
from rollbook.clusters.standing import Standing, standing


class Look(msgspec.Struct, frozen=True):
    """What was seen. `unseen`: why the jobs could not be; the book's word does not need them."""

    status: Status
    pace: Pace
    jobs: list[Standing]
    unseen: str = ""

    @property
    def live_workers(self) -> int:
        """How many workers wait or run."""
        return sum(each.tasks for each in self.jobs if each.kind == "workers" and each.live)


def look(run: Path) -> Look:
    """How a run stands now."""
    far = far_of(run)
    if far:
        seen = far.ask("look", Asked(), Look, lambda _: None)
        return msgspec.structs.replace(seen, status=msgspec.structs.replace(seen.status, path=str(run)))
    status = read_status(run)
    going = pace(run, status.pending)
    try:
        return Look(status, going, standing(run))
    except (slurm.Refused, Unreachable) as error:
        return Look(status, going, [], str(error))
