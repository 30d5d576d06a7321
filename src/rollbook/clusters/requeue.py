"""Going back into the queue: as this one task, within a bound, and only while attempts bring something."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rollbook.book.presence import read_presences
from rollbook.clusters import slurm
from rollbook.clusters.jobs import cancelled, read_jobs
from rollbook.core.json import to_line


class Attempt(msgspec.Struct, frozen=True):
    """One start of a task that came to a stop before its end, and whether it wrote any mark."""

    restart: int
    node: str
    wrote: bool


class Seat(msgspec.Struct, frozen=True):
    """Where this process sits: the array, the task in it, the node, how often Slurm has started it again."""

    array: str = ""
    task: str = ""
    node: str = ""
    restart: int = 0

    @property
    def name(self) -> str:
        """What Slurm calls it. A bare job id could mean the whole array."""
        return f"{self.array}_{self.task}" if self.task else self.array


def seat_of(environ: Mapping[str, str]) -> Seat:
    """What Slurm says to its jobs."""
    return Seat(
        environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID", ""),
        environ.get("SLURM_ARRAY_TASK_ID", ""),
        environ.get("SLURMD_NODENAME", ""),
        int(environ.get("SLURM_RESTART_COUNT") or 0),
    )


def written(run: Path) -> int:
    """How many bytes of marks this process has written to a run."""
    host, pid = socket.gethostname(), os.getpid()
    mine = [name for name, each in read_presences(run).items() if (each.host, each.pid) == (host, pid)]
    return sum(path.stat().st_size for name in mine for path in (run / "journals").glob(f"{name}.*.jsonl"))


def put_back(run: Path, seat: Seat, most: int, wrote: bool) -> str:
    """Requeue this task if that may help; says whether it did, and if not, why."""
    before = _earlier(run, seat)
    _note(run, seat, wrote)
    why = refusal(seat, most, wrote, before) or _not_now(run, seat)
    if why:
        return f"not requeued: {why}; go on with rollbook resume {run}"
    try:
        slurm.requeue(seat.name)
    except slurm.Refused as error:
        return f"not requeued: {error}; go on with rollbook resume {run}"
    return f"requeued as {seat.name}, {seat.restart + 1} of at most {most} times"


def refusal(seat: Seat, most: int, wrote: bool, before: list[Attempt]) -> str:
    """Why another start would bring nothing; empty if it may."""
    if not seat.name:
        return "not in a job of Slurm's"
    if seat.restart >= most:
        return f"started again {seat.restart} times already (restarts: {most})"
    if not wrote and before and not before[-1].wrote:
        return "two attempts running wrote nothing"
    return ""


def _not_now(run: Path, seat: Seat) -> str:
    if seat.array in cancelled(read_jobs(run)):
        return "cancelled"
    states = [task.state for task in slurm.queue([seat.name])]
    if "COMPLETING" in states or "PREEMPTED" in states:
        return "Slurm is ending it, and requeues it itself if it was preempted"
    return "" if states == ["RUNNING"] else f"Slurm has it as {', '.join(states) or 'unknown'}"


def _path(run: Path, seat: Seat) -> Path:
    return run / "jobs" / "attempts" / f"{seat.name}.jsonl"


def _earlier(run: Path, seat: Seat) -> list[Attempt]:
    try:
        lines = _path(run, seat).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Attempt) for line in lines]


def _note(run: Path, seat: Seat, wrote: bool) -> None:
    path = _path(run, seat)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(to_line(Attempt(seat.restart, seat.node, wrote)))
