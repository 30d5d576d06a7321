"""What every process of a job shares: its signals, its log, and how it is requeued.

The scheduler sends USR1 some time before the end and TERM at the end: the first drains, the next stops. A job is
requeued as this one task, within a bound, and only while attempts write something. Its log gets one line per minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from rollbook.book import read_presences
from rollbook.clusters.job_files import read_jobs, read_reports, select_cancelled_ids
from rollbook.clusters.scheduler import ENDING, PREEMPTED, RUNNING, CurrentTask, Scheduler
from rollbook.core import encode_line
from rollbook.engine import LineDisplay, Progress
from rollbook.errors import RollbookError, SchedulerError, Stopped

STOP_MARGIN_S = 45.0
"""The part of the grace period that is left for stopping, writing and requeueing."""
WARNING_SIGNALS = (signal.SIGUSR1, signal.SIGALRM)


class SignalHandler:
    """Handles the signals of a job, in whatever state the process is."""

    def __init__(self, grace_s: float) -> None:
        self._drain_s = max(grace_s - STOP_MARGIN_S, grace_s / 4)
        for number in (signal.SIGTERM, signal.SIGINT, *WARNING_SIGNALS):
            signal.signal(number, raise_interrupt)

    def listen(self) -> None:
        """Handle them in the running event loop: the worker gets the signal that it drains on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._on_warning)
        loop.add_signal_handler(signal.SIGALRM, self._on_deadline)

    def _on_warning(self) -> None:
        """Drain, but stop before the scheduler kills: what is still in flight then is dropped."""
        signal.setitimer(signal.ITIMER_REAL, self._drain_s)
        os.kill(os.getpid(), signal.SIGTERM)

    def _on_deadline(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # another signal than before: the same one would count once

    def ignore(self) -> None:
        """Ignore all signals: what is left to do is short, and must not be interrupted."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGTERM, signal.SIGINT, *WARNING_SIGNALS):
            signal.signal(number, signal.SIG_IGN)


def raise_interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt: the handler of signals before an event loop has its own."""
    raise KeyboardInterrupt


def run_entry_point(main: Callable[[list[str]], int]) -> NoReturn:
    """Exit with what `main` returns for the words of the command line; an error of ours is one line."""
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(Stopped.exit_code)
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        sys.exit(error.exit_code)


LINE_EVERY_S = 60.0


class JobLog(LineDisplay):
    """Writes a worker's progress to the log of its job."""

    def __init__(self) -> None:
        super().__init__(format_progress, LINE_EVERY_S)

    def start(self, total: int, pending: int | None = None) -> None:
        """Write how much there is to do."""
        self.note(f"{total} rollouts in all")

    def note(self, line: str) -> None:
        """Write a line with the time of day."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stderr.flush()


def format_progress(progress: Progress) -> str:
    """Return the progress of a run on one line."""
    failed = sum(progress.failed.values())
    counts = f"scored {progress.scored}, failed {failed}, pending {progress.pending} of {progress.requested}"
    return f"{counts}; {progress.rate:.1f}/s, {progress.in_flight} in flight"


class JobAttempt(msgspec.Struct, frozen=True):
    """One start of a task that was interrupted, and whether it wrote any result."""

    restart: int
    node: str
    wrote: bool


def count_written_bytes(run: Path) -> int:
    """Return how many bytes of results this process has written to a run."""
    host, pid = socket.gethostname(), os.getpid()
    mine = [name for name, each in read_presences(run).items() if (each.host, each.pid) == (host, pid)]
    return sum(path.stat().st_size for name in mine for path in (run / "journals").glob(f"{name}.*.jsonl"))


def requeue_if_useful(run: Path, scheduler: Scheduler, task: CurrentTask, max_restarts: int, wrote: bool) -> str:
    """Requeue this task if that may help; return a line that says so, or why not."""
    before = record_attempt(run, task, wrote)
    refusal = find_refusal(scheduler, task, max_restarts, wrote, before) or _find_queue_refusal(run, scheduler, task)
    if refusal:
        return f"not requeued: {refusal}; continue with rollbook resume {run}"
    try:
        scheduler.requeue(task)
    except SchedulerError as error:
        return f"not requeued: {error}; continue with rollbook resume {run}"
    return f"requeued as {task.name}, {task.restart + 1} of at most {max_restarts} times"


def find_refusal(
    scheduler: Scheduler, task: CurrentTask, max_restarts: int, wrote: bool, before: list[JobAttempt]
) -> str:
    """Return why another start would not help; empty if it may."""
    if not task.name:
        return f"not in a job of {scheduler.title}'s"
    if task.restart >= max_restarts:
        return f"started again {task.restart} times already (restarts: {max_restarts})"
    if not wrote and before and not before[-1].wrote:
        return "two attempts in a row wrote nothing"
    return ""


def _find_queue_refusal(run: Path, scheduler: Scheduler, task: CurrentTask) -> str:
    if task.array in select_cancelled_ids(read_jobs(run), scheduler.name):
        return "cancelled"
    states = [each.state for each in scheduler.read_queue([task.name])]
    if ENDING in states or PREEMPTED in states:
        return f"{scheduler.title} is ending it, and requeues it itself if it was preempted"
    return "" if states == [RUNNING] else f"{scheduler.title} reports it as {', '.join(states) or 'unknown'}"


def record_attempt(run: Path, task: CurrentTask, wrote: bool) -> list[JobAttempt]:
    """Record how this start of a task went; return the earlier ones."""
    path = run / "jobs" / "attempts" / f"{task.name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    before = read_reports(path, JobAttempt)
    is_torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with open(path, "ab") as file:
        file.write((b"\n" if is_torn else b"") + encode_line(JobAttempt(task.restart, task.node, wrote)))
    return before
