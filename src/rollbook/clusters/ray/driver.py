"""`python -m rollbook.clusters.ray.driver RUN SUBMISSION`: a worker pool without a terminal, and its report."""

from __future__ import annotations

from pathlib import Path

from rollbook.book import Book
from rollbook.clusters.job_files import read_order
from rollbook.clusters.job_process import JobLog, run_entry_point
from rollbook.clusters.ray.actors import join_cluster, make_worker_factory
from rollbook.engine import run_round
from rollbook.processes import die_with_parent


def main(words: list[str]) -> int:
    """Keep workers running until the round is over, then write the report."""
    die_with_parent()
    run, number, log = Path(words[0]), int(words[1]), JobLog()
    order = read_order(run, number)
    with join_cluster(order.ray) as cluster:
        result = run_round(Book(run), log, lambda _, round_: make_worker_factory(cluster, run, number, order, round_))
    log.stop()
    log.note(f"{result.report.scored}/{result.report.requested} scored")
    return 0


if __name__ == "__main__":
    run_entry_point(main)
