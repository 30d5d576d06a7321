"""`rollbook status`, `cancel` and `logs`: how far a run is, and its jobs and workers, wherever they run.

`cancel` ends the jobs of a run; what is scored stays.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rollbook.cli import options as o
from rollbook.cli.run_display import format_duration
from rollbook.cli.tables import show_json, show_table
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.book import RunStatus
    from rollbook.clusters import ClusterStatus


def status_command(run: o.Run, json: o.Json = False) -> None:
    seen = read_visible_status(run)
    status, going, jobs = seen.status, seen.pace, seen.jobs
    if json:
        shown = {"rate": going.rate, "eta_s": going.eta_s, "jobs": jobs}
        show_json(msgspec.to_builtins(status) | shown)
        return
    print(f"{status.path}: {status.state}, round {status.round}")
    show_counts(status)
    if going.rate and status.pending:
        print(f"{going.rate:.1f}/s over the last minutes, {format_duration(going.eta_s)} left")
    if jobs:
        show_table(["jobs", "state", "number", "why"], [[j.kind, j.state, j.tasks, j.reason or None] for j in jobs])


def show_counts(status: RunStatus) -> None:
    """What the book says."""
    columns = ["requested", "scored", "failed", "pending", "in flight", "chunks", "workers"]
    failed = sum(status.failed.values())
    chunks = f"{status.chunks_done}/{status.chunks}"
    counts = [status.requested, status.scored, failed, status.pending, status.in_flight]
    show_table(columns, [[*counts, chunks, len(status.workers)]])
    if status.failed:
        show_table(["failure", "rollouts"], sorted(status.failed.items()))
    if status.dropped:
        print(f"{status.dropped} doubled rollouts were dropped")


def read_visible_status(run: Path) -> ClusterStatus:
    """How it stands; a run elsewhere is asked there, and its book is brought here."""
    from rollbook.clusters import read_cluster_status, read_ssh_run

    seen, far = read_cluster_status(run), read_ssh_run(run)
    if far:
        far.fetch(run)
    if seen.unseen:
        print(f"the jobs cannot be seen from here: {seen.unseen}", file=sys.stderr)
    return seen


def cancel_command(run: o.Run) -> None:
    from rollbook.book import Book
    from rollbook.clusters import cancel_run

    path = Book(run).path
    ended = cancel_run(path)
    print(f"cancelled {ended} jobs" if ended else "no job was waiting or running")
    print(f"what is scored stays; go on with: rollbook resume {quote(str(path))}", file=sys.stderr)


WorkerNumber = Annotated[
    int | None, typer.Option("--worker", metavar="N", min=0, help="The whole log of this worker.", show_default=False)
]


def logs_command(run: o.Run, worker: WorkerNumber = None) -> None:
    from rollbook.book import Book
    from rollbook.clusters import find_logs

    found = find_logs(Book(run).path, worker)
    if not found:
        raise UsageError(f"{run}: no worker has written a log; the work of `rollbook run` alone is shown as it goes")
    if worker is None:
        show_table(["log", "file", "last line"], [[log.who, str(log.path), log.last_line] for log in found])
        return
    for log in found:
        print(f"# {log.path}", file=sys.stderr)
        with open(log.path, encoding="utf-8", errors="replace") as file:
            shutil.copyfileobj(file, sys.stdout)
