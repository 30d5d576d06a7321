"""What every process of a job shares: its signals, its log, and going back into the queue.

Slurm sends USR1 some time before the end and TERM at the end: the first drains, the next stops. A job is requeued as
this one task, within a bound, and only while attempts write something. Its log gets a line a minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from rollbook.book import read_presences
from rollbook.clusters import scheduler, slurm
from rollbook.clusters.job_files import read_jobs, select_cancelled_ids
from rollbook.clusters.scheduler import CurrentTask
from rollbook.core import encode_line
from rollbook.engine import Progress

STOP_MARGIN_S = 45.0
"""What is kept of the grace for stopping, writing and going back into the queue."""
WARNING_SIGNALS = (signal.SIGUSR1, signal.SIGALRM)


class SignalHandler:
    """Hears the signals of a job, in whatever state the process is."""

    def __init__(self, grace_s: float) -> None:
        self._drain_s = max(grace_s - STOP_MARGIN_S, grace_s / 4)
        for number in (signal.SIGTERM, signal.SIGINT, *WARNING_SIGNALS):
            signal.signal(number, _raise_interrupt)

    def listen(self) -> None:
        """Within a loop: what a worker drains on is sent to it."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._on_warning)
        loop.add_signal_handler(signal.SIGALRM, self._on_deadline)

    def _on_warning(self) -> None:
        """Drain, but not until the kill: what is still in flight then is dropped."""
        signal.setitimer(signal.ITIMER_REAL, self._drain_s)
        os.kill(os.getpid(), signal.SIGTERM)

    def _on_deadline(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # another number than before: equal ones would count once

    def ignore(self) -> None:
        """What is left to do is short, and must not be interrupted."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGTERM, signal.SIGINT, *WARNING_SIGNALS):
            signal.signal(number, signal.SIG_IGN)


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


LINE_EVERY_S = 60.0


class JobLog:
    """Shows a worker's progress where nobody looks most of the time."""

    def __init__(self) -> None:
        self._next = 0.0
        self._unseen: Progress | None = None

    def start(self, total: int) -> None:
        """Say how much there is to do."""
        self.note(f"{total} rollouts in all")

    def update(self, progress: Progress) -> None:
        """Take note; a line when one is due."""
        self._unseen = progress
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            self.stop()

    def note(self, line: str) -> None:
        """Say something once."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stderr.flush()

    def stop(self) -> None:
        """Show what has not been shown."""
        if self._unseen is not None:
            self.note(format_progress(self._unseen))
        self._unseen = None


def format_progress(progress: Progress) -> str:
    """What this worker knows of the run, on one line."""
    failed = sum(progress.failed.values())
    counts = f"scored {progress.scored}, failed {failed}, open {progress.pending} of {progress.requested}"
    return f"{counts}; {progress.rate:.1f}/s, {progress.in_flight} in flight"


class JobAttempt(msgspec.Struct, frozen=True):
    """One start of a task that came to a stop before its end, and whether it wrote any mark."""

    restart: int
    node: str
    wrote: bool


def count_written_bytes(run: Path) -> int:
    """How many bytes of marks this process has written to a run."""
    host, pid = socket.gethostname(), os.getpid()
    mine = [name for name, each in read_presences(run).items() if (each.host, each.pid) == (host, pid)]
    return sum(path.stat().st_size for name in mine for path in (run / "journals").glob(f"{name}.*.jsonl"))


def requeue_if_useful(run: Path, task: CurrentTask, max_restarts: int, wrote: bool) -> str:
    """Requeue this task if that may help; says whether it did, and if not, why."""
    before = _read_attempts(run, task)
    _add_attempt(run, task, wrote)
    why = find_refusal(task, max_restarts, wrote, before) or _find_queue_refusal(run, task)
    if why:
        return f"not requeued: {why}; go on with rollbook resume {run}"
    try:
        slurm.requeue_task(task.name)
    except scheduler.SchedulerError as error:
        return f"not requeued: {error}; go on with rollbook resume {run}"
    return f"requeued as {task.name}, {task.restart + 1} of at most {max_restarts} times"


def find_refusal(task: CurrentTask, max_restarts: int, wrote: bool, before: list[JobAttempt]) -> str:
    """Why another start would bring nothing; empty if it may."""
    if not task.name:
        return "not in a job of Slurm's"
    if task.restart >= max_restarts:
        return f"started again {task.restart} times already (restarts: {max_restarts})"
    if not wrote and before and not before[-1].wrote:
        return "two attempts running wrote nothing"
    return ""


def _find_queue_refusal(run: Path, seat: CurrentTask) -> str:
    if seat.array in select_cancelled_ids(read_jobs(run)):
        return "cancelled"
    states = [task.state for task in slurm.read_queue([seat.name])]
    if "COMPLETING" in states or "PREEMPTED" in states:
        return "Slurm is ending it, and requeues it itself if it was preempted"
    return "" if states == ["RUNNING"] else f"Slurm has it as {', '.join(states) or 'unknown'}"


def _attempts_path(run: Path, task: CurrentTask) -> Path:
    return run / "jobs" / "attempts" / f"{task.name}.jsonl"


def _read_attempts(run: Path, task: CurrentTask) -> list[JobAttempt]:
    try:
        lines = _attempts_path(run, task).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=JobAttempt) for line in lines]


def _add_attempt(run: Path, task: CurrentTask, wrote: bool) -> None:
    path = _attempts_path(run, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(encode_line(JobAttempt(task.restart, task.node, wrote)))
