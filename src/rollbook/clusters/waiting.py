"""Waiting for submitted jobs as if they were workers here: progress while they run, the book's word at the end."""

from __future__ import annotations

import time
from pathlib import Path

from rollbook.book.status import read_status
from rollbook.clusters import slurm
from rollbook.clusters.far import far_of
from rollbook.clusters.looking import Look, look
from rollbook.clusters.standing import Standing
from rollbook.collect.progress import Display, Progress
from rollbook.collect.report import report
from rollbook.collect.run import Result
from rollbook.collect.shortfall import shortfall

LOOK_S = 5.0
PATIENCE = 12
"""How many looks at the queue may fail running: controllers are restarted now and then."""


def wait(run: Path, display: Display) -> Result:
    """Until no worker waits or runs; then a result if all is scored, else what a local run raises."""
    began, failed, shown = time.monotonic(), 0, ""
    display.start(read_status(run).requested)
    while True:
        try:
            seen, failed = _seen(run), 0
            states = words_of(seen.jobs)
            if states != shown:
                display.note(states)
                shown = states
            display.update(_progress(seen, time.monotonic() - began))
            if not seen.live_workers:
                break
        except slurm.Refused as error:
            failed += 1
            if failed >= PATIENCE:
                raise
            display.note(f"{error}; looking again")
        time.sleep(LOOK_S)
    if far := far_of(run):
        far.fetch(run)
    made = report(run)
    if made.scored < made.requested:
        raise shortfall(made)
    return Result(run, made)


def _seen(run: Path) -> Look:
    seen = look(run)
    if seen.unseen:
        raise slurm.Refused(seen.unseen)
    return seen


def words_of(stands: list[Standing]) -> str:
    """How the workers stand, on one line.

    >>> words_of([Standing("workers", "PENDING", 3, "Resources"), Standing("workers", "RUNNING", 1)])
    'workers: 3 pending (Resources), 1 running'
    """
    several = [each for each in stands if each.kind == "workers"]
    said = [f"{s.tasks} {s.state.lower()}" + (f" ({s.reason})" if s.reason else "") for s in several]
    return f"workers: {', '.join(said)}"


def _progress(seen: Look, seconds: float) -> Progress:
    status = seen.status
    return Progress(
        requested=status.requested,
        scored=status.scored,
        failed=status.failed,
        pending=status.pending,
        rate=seen.pace.rate,
        in_flight=status.in_flight,
        concurrency=seen.live_workers,
        seconds=seconds,
    )
