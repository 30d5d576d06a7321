"""`rollbook status`, `cancel` and `logs`: the progress of a run, and its jobs and workers, wherever they run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rollbook.cli import options as o
from rollbook.cli.report_tables import show_json, show_table, strip_control_characters
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.book import RunStatus
    from rollbook.clusters import ClusterStatus


Exact = Annotated[bool, typer.Option("--exact", help="Count the lines of the journals, which takes longer.")]


WatchedRun = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|FOLDER", help="A run directory, or a folder that run --each has made.", show_default=False
    ),
]


def status_command(run: WatchedRun, exact: Exact = False, json: o.Json = False) -> None:
    from rollbook.book import Book, is_reported_by_field, read_exact_status
    from rollbook.core import describe_cached
    from rollbook.engine import format_duration
    from rollbook.reports import is_model_folder

    if is_model_folder(run):
        from rollbook.cli.model_runs import show_folder_status

        show_folder_status(run, exact, json)
        return
    cluster = read_visible_status(run)
    status, pace, jobs = cluster.status, cluster.pace, cluster.jobs
    if exact or is_reported_by_field(Book(run)):
        status = read_exact_status(run)
    if json:
        show_json(msgspec.to_builtins(status) | {"rate": pace.rate, "eta_s": pace.eta_s, "jobs": jobs})
        return
    print(f"{status.path}: {status.state}, round {status.round}")
    show_counts(status)
    if status.prompt_tokens:
        print(describe_cached(status.cached_tokens, status.prompt_tokens))
    for role, use in sorted(status.roles.items()):
        print(use.describe(role))
    if status.outage:
        print(strip_control_characters(status.outage))
    if pace.rate and status.pending:
        print(f"{pace.rate:.1f}/s over the last minutes, {format_duration(pace.eta_s)} left")
    if jobs:
        show_table(["jobs", "state", "number", "why"], [[j.kind, j.state, j.tasks, j.reason or None] for j in jobs])


def show_counts(status: RunStatus) -> None:
    """Print the counts of a run directory."""
    columns = ["requested", "scored", "failed", "pending", "in flight", "chunks", "workers"]
    failed = sum(status.failed.values())
    chunks = f"{status.chunks_done}/{status.chunks}"
    counts = [status.requested, status.scored, failed, status.pending, status.in_flight]
    show_table(columns, [[*counts, chunks, len(status.workers)]])
    if status.environments:
        columns = ["environment", "requested", "scored", "failed", "pending"]
        groups = status.environments.items()
        show_table(columns, [(name, one.requested, one.scored, one.failed, one.pending) for name, one in groups])
    if status.failed:
        show_table(["failure", "rollouts"], sorted(status.failed.items()))
    if status.dropped:
        print(f"{status.dropped} duplicate rollouts were dropped")
    if status.damaged:
        print(f"{len(status.damaged)} damaged journal lines do not count, the first is {status.damaged[0]}")
    if status.chunks_in_work and not status.exact:
        chunks = f"{status.chunks_in_work} chunk{'s' if status.chunks_in_work > 1 else ''} in work"
        print(f"{chunks}: counted as of the last heartbeats; --exact counts what was written since")


def read_visible_status(run: Path) -> ClusterStatus:
    """Read the status of a run; of a run on another host, read it there and copy its run directory here."""
    from rollbook.clusters import read_cluster_status, read_ssh_run

    cluster, ssh_run = read_cluster_status(run), read_ssh_run(run)
    if ssh_run:
        ssh_run.fetch(run)
    if cluster.unseen:
        print(f"the jobs cannot be seen from here: {cluster.unseen}", file=sys.stderr)
    return cluster


def cancel_command(run: o.Run) -> None:
    from rollbook.book import Book
    from rollbook.clusters import cancel_run

    path = Book(run).path
    count = cancel_run(path)
    print(f"cancelled {count} jobs" if count else "no job was waiting or running")
    print(f"scores are kept; continue with: rollbook resume {quote(str(path))}", file=sys.stderr)


WorkerNumber = Annotated[
    int | None,
    typer.Option("--worker", metavar="N", min=0, help="Print the whole log of this worker.", show_default=False),
]


def logs_command(run: o.Run, worker: WorkerNumber = None) -> None:
    from rollbook.book import Book
    from rollbook.clusters import find_logs

    logs = find_logs(Book(run).path, worker)
    if not logs:
        raise UsageError(f"{run}: no worker has written a log; `rollbook run` prints its progress, and writes none")
    if worker is None:
        show_table(["log", "file", "last line"], [[log.who, str(log.path), log.last_line] for log in logs])
        return
    for log in logs:
        print(f"# {log.path}", file=sys.stderr)
        with open(log.path, encoding="utf-8", errors="replace") as file:
            shutil.copyfileobj(file, sys.stdout)
