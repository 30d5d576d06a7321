"""Ending the jobs of a run. The word comes first, so that no worker goes back into the queue while it is ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollbook.clusters import slurm
from rollbook.clusters.far import Asked, far_of
from rollbook.clusters.jobs import Job, add_job, of_slurm, read_jobs, submitted
from rollbook.errors import UsageError


def cancel_run(run: Path) -> int:
    """End all that waits or runs; gives how many tasks that were."""
    if far := far_of(run):
        return far.ask("cancel", Asked(), int, lambda _: None)
    jobs = submitted(read_jobs(run))
    if not jobs:
        raise UsageError(f"{run}: no job was submitted for this run, so there is none to cancel")
    return _cancel(run, of_slurm(jobs)) + _cancel_crew(run)


def _cancel_crew(run: Path) -> int:
    from rollbook.clusters.ray.crews import cancel_foreman, foreman

    crew = foreman(run)
    return int(crew is not None and cancel_foreman(run, crew))


def cancel_workers(run: Path) -> int:
    """End the workers; the report that waits for them comes."""
    return _cancel(run, submitted(read_jobs(run), "workers"))


def _cancel(run: Path, jobs: Sequence[Job]) -> int:
    live = [task for task in slurm.queue([job.job for job in jobs]) if task.live]
    ids = sorted({task.job for task in live}, key=int)
    for job in jobs:
        if job.job in ids:
            add_job(run, Job("cancelled", job.job, job.submission))
    slurm.cancel(ids)
    return len(live)
