"""`rollbook status`: how far a run is, and how its jobs stand where it was submitted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rollbook.cli import options as o
from rollbook.cli.display import duration
from rollbook.cli.tables import show_json, show_table

if TYPE_CHECKING:
    from rollbook.book.status import Status
    from rollbook.clusters.standing import Standing


def command(run: o.Run, json: o.Json = False) -> None:
    from rollbook.book.status import read_status
    from rollbook.clusters.pace import pace

    status = read_status(run)
    going, jobs = pace(run, status.pending), jobs_of(run)
    if json:
        shown = {"rate": going.rate, "eta_s": going.eta_s, "jobs": jobs}
        show_json(msgspec.to_builtins(status) | shown)
        return
    print(f"{status.path}: {status.state}, round {status.round}")
    show_counts(status)
    if going.rate and status.pending:
        print(f"{going.rate:.1f}/s over the last minutes, {duration(going.eta_s)} left")
    if jobs:
        show_table(["jobs", "state", "number", "why"], [[j.kind, j.state, j.tasks, j.reason or None] for j in jobs])


def show_counts(status: Status) -> None:
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


def jobs_of(run: Path) -> list[Standing]:
    """What the queue says; the book's word does not need it."""
    from rollbook.clusters.slurm import Refused
    from rollbook.clusters.standing import standing

    try:
        return standing(run)
    except Refused as error:
        print(f"the jobs cannot be seen from here: {error}", file=sys.stderr)
        return []
