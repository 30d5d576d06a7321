"""How the jobs of a run stand: by kind and state, from the queue, and from the accounting where there is one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.clusters import slurm
from rollbook.clusters.jobs import Job, of_slurm, read_jobs, submitted

GONE = "GONE"


class Standing(msgspec.Struct, frozen=True):
    """One kind of job, one state: how many tasks, and why they wait."""

    kind: str
    state: str
    tasks: int
    reason: str = ""

    @property
    def live(self) -> bool:
        """Whether they run, or may yet."""
        return self.state != GONE and not slurm.ENDED.fullmatch(self.state)


def standing(run: Path) -> list[Standing]:
    """All tasks of a run by kind and state; `GONE` are those that the controller has forgotten."""
    return [*_of_slurm(run), *_of_ray(run)]


def _of_ray(run: Path) -> list[Standing]:
    from rollbook.clusters.ray.crews import foreman, is_alive

    crew = foreman(run)
    return [Standing("crew", "RUNNING" if is_alive(run, crew) else "ENDED", 1)] if crew else []


def _of_slurm(run: Path) -> list[Standing]:
    jobs = of_slurm(read_jobs(run))
    tasks = slurm.queue([job.job for job in jobs])
    known = {task.job for task in tasks}
    tasks += slurm.accounted([job.job for job in jobs if job.job not in known])
    found: Counter[tuple[str, str, str]] = Counter()
    for job in jobs:
        found.update(_states(job, [task for task in tasks if task.job == job.job]))
    return [Standing(kind, state, count, reason) for (kind, state, reason), count in sorted(found.items())]


def _states(job: Job, tasks: list[slurm.Task]) -> Counter[tuple[str, str, str]]:
    states = Counter((job.kind, task.state, task.reason if task.state == "PENDING" else "") for task in tasks)
    gone = job.count - len(tasks)
    return states + Counter({(job.kind, GONE, ""): max(gone, 0)})


def live_workers(run: Path, kind: Literal["workers", "servers"] = "workers") -> int:
    """How many workers, or shared servers, wait or run."""
    ids = [job.job for job in submitted(read_jobs(run), kind)]
    return sum(task.live for task in slurm.queue(ids))
