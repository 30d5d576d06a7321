"""Several workers of one run: they join its book, here or elsewhere, are watched, and replaced within a bound."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol, TypeAlias

import msgspec

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
LATELY = 30
"""How many looks back the rate is taken from."""
SAID_AFTER = 10
"""How many looks running find workers that wait before it is said: starting takes some seconds anywhere."""


class Fate(msgspec.Struct, frozen=True):
    """How a worker ended: its exit code and last words. Where it was `lost`, another may take its place."""

    code: int
    words: str
    lost: bool = False


class Hand(Protocol):
    """A worker of a crew, wherever it runs."""

    @property
    def waiting(self) -> bool:
        """Whether there is no room for it yet."""

    def fate(self) -> Fate | None:
        """How it ended; None before."""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal: it drains on the first and stops on the second."""

    def kill_now(self) -> None:
        """End it, whatever it does."""


def killed(code: int) -> Fate:
    """The fate of a process that a signal ended.

    >>> killed(-15).words
    'was killed by SIGTERM, lower --concurrency or --workers'
    """
    name = signal.Signals(-code).name
    memory = " (most often: out of memory)" if name == "SIGKILL" else ""
    return Fate(code, f"was killed by {name}{memory}, lower --concurrency or --workers", lost=True)


Start: TypeAlias = Callable[[int], Hand]
"""Starts the worker with this number."""


class Process:
    """A worker that is a process of ours."""

    waiting = False

    def __init__(self, book: Book, round_: Round, seat: int) -> None:
        log = book.path / "logs" / f"worker-{round_.number}-{seat}.log"
        self._child = Child(module_argv("rollbook", "work", str(book.path)), log=log)
        self.signal, self.kill_now = self._child.signal, self._child.kill_now

    def fate(self) -> Fate | None:
        """How it ended; None before."""
        code = self._child.returncode
        if code is None or code >= 0:
            return None if code is None else Fate(code, self._child.last_words())
        return killed(code)


class Crew:
    """Starts as many workers as the round has, by itself as processes, and tells what became of them."""

    def __init__(self, book: Book, round_: Round, display: Display, start: Start | None = None) -> None:
        self._book, self._round, self._display = book, round_, display
        self._start: Start = start or partial(Process, book, round_)
        self._workers: dict[int, Hand] = {}
        self._left = REPLACEMENTS * round_.settings.workers
        self._stopping = 0
        self._cause = self._verdict = ""
        self._trouble: Exception | None = None
        self._looks = 0
        self._began = monotonic()
        self._pace: deque[tuple[float, int]] = deque(maxlen=LATELY)

    async def work(self, *, signals: bool) -> str:
        """Until no worker is left; gives the probable cause where some died."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if signals}
        for number in before:
            loop.add_signal_handler(number, self._signalled)
        self._display.start(self._book.plan.requested)
        try:
            for seat in range(self._round.settings.workers):
                self._workers[seat] = self._start(seat)
            while self._workers:
                await asyncio.sleep(LOOK_S)
                await self._look()
        finally:
            for hand in self._workers.values():
                hand.kill_now()
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler or signal.SIG_DFL)  # the report may take a while: it can be interrupted
        if self._trouble:
            raise self._trouble
        if self._stopping:
            raise Stopped(f"interrupted: rollbook resume {self._book.path}")
        return self._verdict or self._cause

    def _signalled(self) -> None:
        """Pass it on: the workers drain on the first and stop on the second."""
        self._stopping += 1
        self._display.note(f"draining {len(self._workers)} workers; once more stops at once")
        for hand in self._workers.values():
            hand.signal(signal.SIGTERM)

    async def _look(self) -> None:
        for seat, hand in list(self._workers.items()):
            fate = hand.fate()
            if fate is not None:
                del self._workers[seat]
                self._ended(seat, fate)
        status = await asyncio.to_thread(read_status, self._book.path)
        self._display.update(self._progress(status))
        self._judge(status)
        self._see_to_waiting(needed=bool(status.pending) and not self._stopping and not self._verdict)

    def _see_to_waiting(self, needed: bool) -> None:
        """Say how many wait for room; those that nobody needs any more are sent home."""
        waiting = [seat for seat, hand in self._workers.items() if hand.waiting]
        if not needed:
            for seat in waiting:
                self._workers.pop(seat).kill_now()
            return
        self._looks = self._looks + 1 if waiting else 0
        if self._looks == SAID_AFTER:
            self._display.note(f"{len(waiting)} of {len(self._workers)} workers wait for room")

    def _judge(self, status: Status) -> None:
        """What --fail-fast and --max-failures say of all workers together: the rest is stopped at once."""
        settings, failed = self._round.settings, sum(status.failed.values())
        allowed = 0 if settings.fail_fast else failures_allowed(settings.max_failures, status.requested)
        if failed > allowed and not self._verdict:
            rule = "--fail-fast" if settings.fail_fast else f"--max-failures {settings.max_failures}"
            self._verdict = f"stopped by {rule} with {failed} failed"
            for number in (signal.SIGTERM, signal.SIGINT):  # equal ones that come at once would count once
                for hand in self._workers.values():
                    hand.signal(number)

    def _ended(self, seat: int, fate: Fate) -> None:
        if fate.code in ORDERLY or self._stopping or self._verdict:
            return
        if not fate.lost:
            self._trouble = self._trouble or _trouble(seat, fate)
            return
        self._cause = f"worker {seat} {fate.words}"
        self._display.note(f"{self._cause}; its chunks are taken over")
        if self._left:
            self._left -= 1
            self._workers[seat] = self._start(seat)

    def _progress(self, status: Status) -> Progress:
        now = monotonic()
        self._pace.append((now, status.scored + sum(status.failed.values())))
        (since, before), (_, done) = self._pace[0], self._pace[-1]
        return Progress(
            rate=(done - before) / (now - since) if now > since else 0.0,
            seconds=now - self._began,
            requested=status.requested,
            scored=status.scored,
            failed=status.failed,
            pending=status.pending,
            in_flight=status.in_flight,
            concurrency=sum(not hand.waiting for hand in self._workers.values()),
        )


def _trouble(seat: int, fate: Fate) -> Exception:
    """What is to be raised for a worker that gave up."""
    said = fate.words.removeprefix("rollbook: ") or f"worker {seat} exited with {fate.code}"
    known = {kind.exit_code: kind for kind in (Stopped, UsageError)}
    return known.get(fate.code, RuntimeError)(said)
