"""The logs of a run's workers, found by the worker's number, wherever they ran."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from rollbook.clusters.far import far_of
from rollbook.clusters.jobs import of_slurm, read_jobs, submitted
from rollbook.errors import UsageError

LOCAL = re.compile(r"worker-(\d+)-(\d+)\.log")
TAIL_BYTES = 64 * 1024


class Log(msgspec.Struct, frozen=True):
    """A log: whose it is, and where it lies."""

    who: str
    path: Path
    worker: int | None = None

    @property
    def last_line(self) -> str:
        """The last thing it says."""
        with open(self.path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")


def logs_of(run: Path, worker: int | None = None) -> list[Log]:
    """Every log of a run that is there, or those of one worker; of a run elsewhere they are brought here first."""
    if far := far_of(run):
        far.fetch(run, "logs/***", "jobs.jsonl")
    found = [log for log in [*_slurm(run), *_crews(run), *_local(run), *_servers(run)] if log.path.exists()]
    if worker is None:
        return found
    own = [log for log in found if log.worker == worker]
    if not own:
        known = sorted({log.worker for log in found if log.worker is not None})
        there = f"there are workers {known[0]} to {known[-1]}" if known else f"no worker has written to {run / 'logs'}"
        raise UsageError(f"--worker {worker}: no log of that worker; {there}")
    return own


def _slurm(run: Path) -> list[Log]:
    found = []
    for job in of_slurm(read_jobs(run)):
        if job.kind == "report":
            found.append(Log(f"report {job.job}", run / "logs" / f"slurm-{job.job}.log"))
            continue
        for task in range(job.count):
            number = job.first + task
            worker = number if job.kind == "workers" else None
            name = f"{job.kind.removesuffix('s')} {number}"
            found.append(Log(name, run / "logs" / f"slurm-{job.job}_{task}.log", worker))
    return found


def _crews(run: Path) -> list[Log]:
    """Those of foremen on Ray."""
    crews = submitted(read_jobs(run), "crew")
    return [Log(f"crew {job.submission}", run / "logs" / f"crew-{job.submission}.log") for job in crews]


def _local(run: Path) -> list[Log]:
    """Those of workers that a crew started, on this machine or on Ray."""
    paths = sorted((run / "logs").glob("worker-*.log"))
    matches = [(path, LOCAL.fullmatch(path.name)) for path in paths]
    return [Log(f"worker {m[2]} (round {m[1]})", path, int(m[2])) for path, m in matches if m]


def _servers(run: Path) -> list[Log]:
    """Those of model servers that jobs brought along."""
    return [Log("model server", path) for path in sorted((run / "logs").glob("server-*.log"))]
