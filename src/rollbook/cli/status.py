"""`rollbook status`: how far a run is."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.tables import show_json, show_table


def command(run: o.Run, json: o.Json = False) -> None:
    from rollbook.book.status import read_status

    status = read_status(run)
    if json:
        show_json(status)
        return
    print(f"{status.path}: {status.state}, round {status.round}")
    columns = ["requested", "scored", "failed", "pending", "in flight", "chunks", "workers"]
    failed = sum(status.failed.values())
    chunks = f"{status.chunks_done}/{status.chunks}"
    counts = [status.requested, status.scored, failed, status.pending, status.in_flight]
    show_table(columns, [[*counts, chunks, len(status.workers)]])
    if status.failed:
        show_table(["failure", "rollouts"], sorted(status.failed.items()))
    if status.dropped:
        print(f"{status.dropped} doubled rollouts were dropped")
