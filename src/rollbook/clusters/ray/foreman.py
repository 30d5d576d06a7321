"""`python -m rollbook.clusters.ray.foreman RUN SUBMISSION`: a crew that goes on without a terminal, and its report."""

from __future__ import annotations

import sys
from pathlib import Path

from rollbook.book.book import Book
from rollbook.clusters.joblog import JobLog
from rollbook.clusters.order import read_order
from rollbook.clusters.ray.cluster import joined
from rollbook.clusters.ray.muster import mustered
from rollbook.collect.run import work_off
from rollbook.errors import RollbookError, Stopped
from rollbook.processes.life import die_with_parent


def main(words: list[str]) -> int:
    """Keep workers at it until the round is over, then write the report."""
    die_with_parent()
    run, number, log = Path(words[0]), int(words[1]), JobLog()
    try:
        order = read_order(run, number)
        with joined(order.ray) as cluster:
            result = work_off(Book(run), log, lambda _, round_: mustered(cluster, run, number, order, round_))
    except KeyboardInterrupt:
        return Stopped.exit_code
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        return error.exit_code
    log.stop()
    log.note(f"{result.report.scored}/{result.report.requested} scored")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
