"""What a run waits for: jobs or other runs. One that failed, or that nobody knows, is an error and never a start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rollbook.book.status import read_status
from rollbook.clusters import slurm
from rollbook.clusters.jobs import read_jobs, submitted
from rollbook.errors import UsageError

JOB = re.compile(r"\d+(_\d+)?")


def upstream(after: Sequence[str]) -> list[str]:
    """The ids of the jobs that have to end well first; those that did already need no waiting for."""
    return [job for name in after for job in (_job(name) if JOB.fullmatch(name) else _run(name))]


def _job(name: str) -> list[str]:
    tasks = slurm.queue([name]) or slurm.accounted([name])
    if not tasks:
        raise UsageError(f"after: {name}: Slurm knows no such job, and would not wait for it")
    lost = [task.state for task in tasks if not task.live and task.state != "COMPLETED"]
    if lost:
        raise UsageError(f"after: {name}: that job is {lost[0]}; see to it first")
    return [name] if any(task.live for task in tasks) else []


def _run(name: str) -> list[str]:
    status = read_status(name)
    if status.scored == status.requested:
        return []
    reports = [job.job for job in submitted(read_jobs(Path(name)), "report")][-1:]
    if any(task.live for task in slurm.queue(reports)):
        return reports
    raise UsageError(f"after: {name}: {status.pending} of its rollouts are pending and none of its jobs waits or runs")
