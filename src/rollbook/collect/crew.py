"""Several workers of one run on this machine: processes that join its book, watched and replaced within a bound."""

from __future__ import annotations

import asyncio
import signal

from rollbook.book.book import Book
from rollbook.book.status import Status, read_status
from rollbook.collect.progress import Display, Progress
from rollbook.collect.retry import failures_allowed
from rollbook.core.manifest import Round
from rollbook.errors import Stopped, UsageError
from rollbook.processes.child import Child, module_argv

LOOK_S = 1.0
REPLACEMENTS = 3
ORDERLY = (0, 3)


class Crew:
    """Starts `workers` processes of `rollbook work`, and tells what became of them."""

    def __init__(self, book: Book, round_: Round, display: Display) -> None:
        self._book, self._round, self._display = book, round_, display
        self._workers: dict[int, Child] = {}
        self._left = REPLACEMENTS * round_.settings.workers
        self._stopping = 0
        self._cause = self._verdict = ""
        self._trouble: Exception | None = None

    async def work(self, *, signals: bool) -> str:
        """Until no worker is left; gives the probable cause where some died."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM) if signals else ():
            loop.add_signal_handler(number, self._signalled)
        self._display.start(self._book.plan.requested)
        try:
            for seat in range(self._round.settings.workers):
                self._start(seat)
            while self._workers:
                await asyncio.sleep(LOOK_S)
                await self._look()
        finally:
            for child in self._workers.values():
                child.kill_now()
            for number in (signal.SIGINT, signal.SIGTERM) if signals else ():
                loop.remove_signal_handler(number)
        if self._trouble:
            raise self._trouble
        if self._stopping:
            raise Stopped(f"interrupted: rollbook resume {self._book.path}")
        return self._verdict or self._cause

    def _start(self, seat: int) -> None:
        log = self._book.path / "logs" / f"worker-{self._round.number}-{seat}.log"
        self._workers[seat] = Child(module_argv("rollbook", "work", str(self._book.path)), log=log)

    def _signalled(self) -> None:
        """Pass it on: the workers drain on the first and stop on the second."""
        self._stopping += 1
        self._display.note(f"draining {len(self._workers)} workers; once more stops at once")
        for child in self._workers.values():
            child.signal(signal.SIGTERM)

    async def _look(self) -> None:
        for seat, child in list(self._workers.items()):
            if child.returncode is not None:
                del self._workers[seat]
                self._ended(seat, child)
        status = await asyncio.to_thread(read_status, self._book.path)
        self._display.update(self._progress(status))
        self._judge(status)

    def _judge(self, status: Status) -> None:
        """What --fail-fast and --max-failures say of all workers together: the rest is stopped at once."""
        settings, failed = self._round.settings, sum(status.failed.values())
        allowed = 0 if settings.fail_fast else failures_allowed(settings.max_failures, status.requested)
        if failed > allowed and not self._verdict:
            rule = "--fail-fast" if settings.fail_fast else f"--max-failures {settings.max_failures}"
            self._verdict = f"stopped by {rule} with {failed} failed"
            for child in list(self._workers.values()) * 2:
                child.signal(signal.SIGTERM)

    def _ended(self, seat: int, child: Child) -> None:
        code = child.returncode or 0
        if code in ORDERLY or self._stopping or self._verdict:
            return
        if code > 0:
            said = child.last_words().removeprefix("rollbook: ") or f"worker {seat} exited with {code}"
            kind = (
                Stopped if code == Stopped.exit_code else UsageError if code == UsageError.exit_code else RuntimeError
            )
            self._trouble = self._trouble or kind(said)
            return
        name = signal.Signals(-code).name
        memory = " (most often: out of memory)" if name == "SIGKILL" else ""
        self._cause = f"worker {seat} was killed by {name}{memory}, lower --concurrency or --workers"
        self._display.note(f"{self._cause}; its chunks are taken over")
        if self._left:
            self._left -= 1
            self._start(seat)

    def _progress(self, status: Status) -> Progress:
        return Progress(
            requested=status.requested,
            scored=status.scored,
            failed=status.failed,
            pending=status.pending,
            in_flight=status.in_flight,
            concurrency=len(self._workers),
        )
