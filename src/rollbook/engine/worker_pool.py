"""Several workers of one run: start them here or elsewhere, watch them, replace the ones that die, within a bound."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol, TypeAlias

import msgspec

from rollbook.book import Book, RunStatus, has_pending, read_status
from rollbook.core import FAILURE_KINDS, Round
from rollbook.engine.costs import CostMeter
from rollbook.engine.progress import Display, Progress, count_pending
from rollbook.engine.retries import parse_max_failures
from rollbook.engine.worker import signal_handler
from rollbook.errors import Shortfall, Stopped, UsageError
from rollbook.processes import Child, module_argv

POLL_S = 1.0
STOPPING_POLL_S = 0.2
REPLACEMENTS_PER_WORKER = 3
RATE_POLLS = 30
"""How many polls the rate is computed from."""
WAITING_NOTE_POLLS = 10
"""How many polls in a row find waiting workers before that is reported: starting takes some seconds anywhere."""


class ExitStatus(msgspec.Struct, frozen=True):
    """How a worker ended: its exit code and last message. If `replaceable`, another may take its place."""

    code: int
    message: str
    replaceable: bool = False


class WorkerHandle(Protocol):
    """A worker of a pool, wherever it runs."""

    @property
    def waiting(self) -> bool:
        """Whether it waits for resources."""

    def exit_status(self) -> ExitStatus | None:
        """How it ended; None before."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: the worker drains on the first and stops on the second."""

    def kill_now(self) -> None:
        """End it, whatever it does."""


def killed_exit_status(exit_code: int) -> ExitStatus:
    """Return the status of a process that a signal ended.

    >>> killed_exit_status(-15).message
    'was killed by SIGTERM, lower --concurrency or --workers'
    """
    name = signal.Signals(-exit_code).name
    memory = " (most often: out of memory)" if name == "SIGKILL" else ""
    return ExitStatus(exit_code, f"was killed by {name}{memory}, lower --concurrency or --workers", replaceable=True)


StartWorker: TypeAlias = Callable[[int], WorkerHandle]
"""Starts the worker with this number."""


class WorkerProcess:
    """A worker in a child process."""

    waiting = False

    def __init__(self, book: Book, round_: Round, number: int) -> None:
        log = book.path / "logs" / f"worker-{round_.number}-{number}.log"
        self._child = Child(module_argv("rollbook", "work", str(book.path)), log=log)
        self.signal, self.kill_now = self._child.send_signal, self._child.kill_now

    def exit_status(self) -> ExitStatus | None:
        """How it ended; None before."""
        code = self._child.returncode
        if code is None:
            return None
        last_line = self._child.last_log_line()
        if code > 0 and last_line == "KeyboardInterrupt":  # Python itself was still starting
            code = -signal.SIGINT
        return killed_exit_status(code) if code < 0 else ExitStatus(code, last_line)


class WorkerPool:
    """Starts as many workers as the round has, by default as child processes, and handles their ends."""

    def __init__(self, book: Book, round_: Round, display: Display, start: StartWorker | None = None) -> None:
        self._book, self._round, self._display = book, round_, display
        self._start: StartWorker = start or partial(WorkerProcess, book, round_)
        self._workers: dict[int, WorkerHandle] = {}
        self._replacements_left = REPLACEMENTS_PER_WORKER * round_.settings.workers
        self._stopping = 0
        self._cause = self._stop_reason = ""
        self._error: Exception | None = None
        self._polls_with_waiting = 0
        self._began = monotonic()
        self._recent_counts: deque[tuple[float, int]] = deque(maxlen=RATE_POLLS)
        self._costs = CostMeter(book.path, round_.settings)

    async def run(self, *, handle_signals: bool) -> str:
        """Run until no worker is left; return the probable cause if some died."""
        with signal_handler(self._on_signal, handle_signals):
            pending = await asyncio.to_thread(count_pending, self._book)
            self._display.start(self._book.plan.requested, pending)
            try:
                self._workers = {one: self._start(one) for one in range(self._round.settings.workers)}
                while self._workers:
                    await asyncio.sleep(STOPPING_POLL_S if self._stopping else POLL_S)
                    await self._poll()
            finally:
                for worker in self._workers.values():
                    worker.kill_now()
        await self._raise_if_unfinished()
        return self._stop_reason or self._cause

    async def _raise_if_unfinished(self) -> None:
        """Raise why workers stopped, unless the files say that the others, or those that drained, finished the run."""
        error = self._error or (Stopped(f"interrupted: rollbook resume {self._book.path}") if self._stopping else None)
        if error is None:
            return
        if await asyncio.to_thread(has_pending, self._book.path):
            raise error
        if self._error:
            self._display.note(f"a worker ended early ({self._error}); nothing is left to do")

    def _on_signal(self, _: int) -> None:
        """Forward a signal: the workers drain on the first and stop on the second."""
        self._stopping += 1
        self._display.note(f"draining {len(self._workers)} workers; once more stops at once")
        for worker in self._workers.values():
            worker.signal(signal.SIGTERM)

    async def _poll(self) -> None:
        for number, worker in list(self._workers.items()):
            exit_status = worker.exit_status()
            if exit_status is not None:
                del self._workers[number]
                self._on_exit(number, exit_status)
        status = await asyncio.to_thread(self._read_status)
        self._display.update(self._progress(status))
        self._check_failures(status)
        self._check_costs()
        self._handle_waiting(needed=bool(status.pending) and not self._stopping and not self._stop_reason)

    def _handle_waiting(self, needed: bool) -> None:
        """Report how many workers wait for resources; end waiting ones that are no longer needed."""
        waiting = [number for number, worker in self._workers.items() if worker.waiting]
        if not needed:
            for number in waiting:
                self._workers.pop(number).kill_now()
            return
        self._polls_with_waiting = self._polls_with_waiting + 1 if waiting else 0
        if self._polls_with_waiting == WAITING_NOTE_POLLS:
            self._display.note(f"{len(waiting)} of {len(self._workers)} workers wait for room")

    def _read_status(self) -> RunStatus:
        self._costs.read()
        return read_status(self._book.path)

    def _check_costs(self) -> None:
        """Let all workers finish what is in flight if --max-cost says so for them together."""
        if self._costs.stop_reason and not self._stop_reason:
            self._stop_reason = self._costs.stop_reason
            for worker in self._workers.values():
                worker.signal(signal.SIGTERM)

    def _check_failures(self, status: RunStatus) -> None:
        """Stop all workers at once if --fail-fast or --max-failures says so for them together."""
        settings, failed = self._round.settings, sum(status.failed.values())
        allowed = 0 if settings.fail_fast else parse_max_failures(settings.max_failures, status.requested)
        if failed > allowed and not self._stop_reason:
            rule = "--fail-fast" if settings.fail_fast else f"--max-failures {settings.max_failures}"
            self._stop_reason = f"stopped by {rule} with {failed} failed"
            for number in (signal.SIGTERM, signal.SIGINT):  # two equal signals at the same time would count once
                for worker in self._workers.values():
                    worker.signal(number)

    def _on_exit(self, number: int, exit_status: ExitStatus) -> None:
        # A worker that did its work, with or without a shortfall, is not replaced.
        orderly = {0, Shortfall.exit_code, *(kind.exit_code for kind in FAILURE_KINDS.values())}
        if exit_status.code in orderly or self._stopping or self._stop_reason:
            return
        if not exit_status.replaceable:
            self._error = self._error or _exit_error(number, exit_status)
            return
        self._cause = f"worker {number} {exit_status.message}"
        self._display.note(f"{self._cause}; its chunks are taken over")
        if self._replacements_left:
            self._replacements_left -= 1
            self._workers[number] = self._start(number)

    def _progress(self, status: RunStatus) -> Progress:
        now = monotonic()
        self._recent_counts.append((now, status.scored + sum(status.failed.values())))
        (since, before), (_, done) = self._recent_counts[0], self._recent_counts[-1]
        return Progress(
            rate=(done - before) / (now - since) if now > since else 0.0,
            seconds=now - self._began,
            requested=status.requested,
            scored=status.scored,
            failed=status.failed,
            pending=status.pending,
            in_flight=status.in_flight,
            concurrency=sum(not worker.waiting for worker in self._workers.values()),
            outage=status.outage,
            prompt_tokens=status.prompt_tokens,
            cached_tokens=status.cached_tokens,
            cost=self._costs.cost,
        )


def _exit_error(number: int, exit_status: ExitStatus) -> Exception:
    """Return the exception for a worker that gave up."""
    message = exit_status.message.removeprefix("rollbook: ") or f"worker {number} exited with {exit_status.code}"
    known = {kind.exit_code: kind for kind in (Stopped, UsageError)}
    return known.get(exit_status.code, RuntimeError)(message)
