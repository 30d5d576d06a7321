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
    from rollbook.clusters.looking import Look


def command(run: o.Run, json: o.Json = False) -> None:
    seen = seen_at(run)
    status, going, jobs = seen.status, seen.pace, seen.jobs
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


def seen_at(run: Path) -> Look:
    """How it stands; a run elsewhere is asked there, and its book is brought here."""
    from rollbook.clusters.far import far_of
    from rollbook.clusters.looking import look

    seen, far = look(run), far_of(run)
    if far:
        far.fetch(run)
    if seen.unseen:
        print(f"the jobs cannot be seen from here: {seen.unseen}", file=sys.stderr)
    return seen
