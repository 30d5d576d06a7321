"""Hooks: functions of the user that are called during a run, and can neither slow it down nor end it.

The hooks of one `Hooks` are called one after another from one thread of their own, which reads the journals of the run.
So they work in the same way wherever rollouts run: this process, worker processes, jobs of a cluster. The journal
is the queue: a slow hook is late and uses no memory, and nothing waits for it until the end of the run. There it gets a
bounded time; what it did not receive by then is counted and reported.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from rollbook.book import Book
from rollbook.core import FailedLine, Rollout, ScoredLine
from rollbook.engine.journal_progress import FailedNumbers, JournalCounter, JournalTail, ScoredNumbers
from rollbook.engine.progress import Display, Progress
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.reports import Run

Say: TypeAlias = Callable[[str], None]

POLL_S = 0.5
"""How often the journals are read, and the least time between two calls of on_progress."""
JOURNALS_PER_S = 20
"""With many workers their journals are read less often."""
CATCH_UP_S = 5.0
"""For how long a hook is told, after the end of the work, of rollouts that it has not been told of."""
END_S = 15.0
"""For how long the end of a run waits for its hooks, catching up included."""


class Hooks(msgspec.Struct, frozen=True):
    """Functions that are called while a run works, in one thread; `name` stands for them in messages.

    `on_rollout` gets every rollout that ends in this round, scored or failed for good, its turns without token ids.
    `on_progress` gets the counts, twice a second at most, and the last ones at the end. `on_end` gets the run once its
    work has ended, however it ended.
    """

    on_rollout: Callable[[Rollout], object] | None = None
    on_progress: Callable[[Progress], object] | None = None
    on_end: Callable[[Run], object] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for name in ("on_rollout", "on_progress", "on_end"):
            hook = getattr(self, name)
            if hook is not None:
                check_hook(name, hook)

    def __bool__(self) -> bool:
        return any(hook is not None for hook in (self.on_rollout, self.on_progress, self.on_end))


def check_hook(name: str, hook: object) -> None:
    """Refuse what cannot be called, and a coroutine function, which a thread would call and nobody await."""
    if not callable(hook):
        raise UsageError(f"{name}={hook!r}: give a function")
    if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__):
        raise UsageError(f"{name}: give a plain function; a coroutine function (async def) is not awaited")


class Observer(Protocol):
    """Follows a run from the start of its work: `start` is called once, then `update`, `end` and `wait`."""

    def start(self) -> None:
        """Begin; the run directory exists now."""

    def update(self, progress: Progress) -> None:
        """Take what the workers report; must return at once."""

    def end(self) -> None:
        """Take note that the work has ended; must return at once."""

    def wait(self) -> None:
        """Wait, within a bound, until nothing is left to tell."""


class HookLoop:
    """Reads the journals of a run and calls its hooks, until `ending` is set and nothing is left to read."""

    def __init__(self, run: Path, hooks: Hooks, say: Say) -> None:
        self._run, self._hooks, self._say = run, hooks, say
        self.ending = threading.Event()
        self.latest: Progress | None = None
        self.given_up = False
        """Set when nobody waits for the hooks any longer: none is called after that."""
        self.told = 0
        """How many rollouts on_rollout was called with."""
        self.round = 0
        self._missed = 0
        self._is_current = False
        """Whether all that earlier rounds left was read: counts before that would be those of the past."""
        self._reported: set[str] = set()
        self._next_progress = 0.0
        self._catch_up_until = float("inf")

    def run(self) -> None:
        """Follow the run to its end."""
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - files of the run that cannot be read end its hooks, not the run
            self._report("reading", f"{self._named('hooks')} ended early, the run did not: {_describe(error)}")

    def _follow(self) -> None:
        book = Book(self._run)
        self.round = book.rounds()[-1].number
        counter = JournalCounter(book)
        tail: JournalTail[ScoredLine, FailedLine] | JournalTail[ScoredNumbers, FailedNumbers]
        if self._hooks.on_rollout:
            tail = JournalTail(book, ScoredLine, FailedLine)
        else:
            tail = JournalTail(book, ScoredNumbers, FailedNumbers)
        ending = False
        while not ending:
            # Looked at before the journals: what was durable at the end of the work is read.
            ending = self.ending.wait(max(POLL_S, tail.journals / JOURNALS_PER_S))
            self._read(book, counter, tail)
        self._end(counter)

    def _read(
        self,
        book: Book,
        counter: JournalCounter,
        tail: JournalTail[ScoredLine, FailedLine] | JournalTail[ScoredNumbers, FailedNumbers],
    ) -> None:
        for line in tail.read():
            row = counter.add(line)
            if row is not None and line.round == self.round and isinstance(line, ScoredLine | FailedLine):
                self._tell(line.to_rollout(book.tasks.read(row)))
                if self._is_current:  # a slow on_rollout does not hold up on_progress
                    self._show(counter)
        self._is_current = True
        self._show(counter)

    def _tell(self, rollout: Rollout) -> None:
        if self.ending.is_set():
            self._catch_up_until = min(self._catch_up_until, time.monotonic() + CATCH_UP_S)
        if self.given_up or time.monotonic() > self._catch_up_until:
            self._missed += 1
            return
        self.told += 1
        self._call("on_rollout", self._hooks.on_rollout, rollout)

    def _show(self, counter: JournalCounter) -> None:
        now = time.monotonic()
        if self._hooks.on_progress and now >= self._next_progress:
            self._next_progress = now + POLL_S
            self._call("on_progress", self._hooks.on_progress, counter.progress(self.latest))

    def _end(self, counter: JournalCounter) -> None:
        if self._hooks.on_progress:
            self._call("on_progress", self._hooks.on_progress, counter.progress(self.latest))
        if self._hooks.on_end:
            from rollbook.reports import Run

            self._call("on_end", self._hooks.on_end, Run(self._run))
        if self._missed and not self.given_up:
            self.report_missed(self._missed)

    def _call(self, what: str, hook: Callable[..., object] | None, argument: object) -> None:
        if hook is None or self.given_up:
            return
        try:
            hook(argument)
        except BaseException as error:  # noqa: BLE001 - code of the user, which may also raise KeyboardInterrupt
            self._report(self._named(what), f"{self._named(what)} failed, the run goes on: {_describe(error)}")

    def report_missed(self, count: int) -> None:
        """Report rollouts that on_rollout was not called with."""
        self._report("missed", f"{self._named('on_rollout')} was too slow: it was not told of {count} rollouts")

    def report_late(self, waited_s: float) -> None:
        """Report hooks that did not return in time."""
        self._report("late", f"{self._named('hooks')} did not return within {waited_s:g} s of the end of the run")

    def _named(self, what: str) -> str:
        return self._hooks.name or what

    def _report(self, topic: str, line: str) -> None:
        if topic not in self._reported:
            self._reported.add(topic)
            self._say(line)


def _describe(error: BaseException) -> str:
    """Return an exception on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")


class HookThread:
    """Calls hooks in a thread that does not keep the process from ending."""

    def __init__(self, run: Path, hooks: Hooks, say: Say) -> None:
        self._run, self._hooks = run, hooks
        self._loop = HookLoop(run, hooks, say)
        self._thread = threading.Thread(target=self._loop.run, name="rollbook hooks", daemon=True)
        self._ended_at = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def update(self, progress: Progress) -> None:
        """Keep what the workers last reported."""
        self._loop.latest = progress

    def end(self) -> None:
        """Let the thread end once it has read everything."""
        self._ended_at = time.monotonic()
        self._loop.ending.set()

    def wait(self) -> None:
        """Wait for the thread, within a bound; then leave it behind."""
        self._thread.join(max(0.0, self._ended_at + END_S - time.monotonic()))
        if not self._thread.is_alive():
            return
        self._loop.given_up = True
        self._loop.report_late(END_S)
        if self._hooks.on_rollout and (missed := self._count_missed()):
            self._loop.report_missed(missed)

    def _count_missed(self) -> int:
        """Count from the journals what the thread, which hangs, was not told of."""
        book = Book(self._run)
        counter, tail = JournalCounter(book), JournalTail(book, ScoredNumbers, FailedNumbers)
        new = sum(counter.add(line) is not None and line.round == self._loop.round for line in tail.read())
        return new - self._loop.told


class ObservedDisplay:
    """A display whose run is followed by observers, from the start of the work to its end."""

    def __init__(self, display: Display, observers: Sequence[Observer]) -> None:
        self._display, self._observers = display, observers
        self._started: list[Observer] = []
        self.note = display.note

    def start(self, total: int, pending: int | None = None) -> None:
        """Start the display and the observers; called once the run directory exists."""
        self._display.start(total, pending)
        for observer in self._observers:
            try:
                observer.start()
            except Exception as error:  # noqa: BLE001 - no thread or pipe is left: the run does not need one
                self.note(f"a hook or tracker could not be started, the run goes on: {_describe(error)}")
            else:
                self._started.append(observer)

    def update(self, progress: Progress) -> None:
        """Pass the numbers on."""
        self._display.update(progress)
        for observer in self._started:
            observer.update(progress)

    def stop(self) -> None:
        """Stop the display, then wait for the observers, all within the same time."""
        self._display.stop()
        started, self._started = self._started, []
        for observer in started:
            observer.end()
        for observer in started:
            observer.wait()


def log_warning(line: str) -> None:
    """Report a line to the log of a program that calls `run`; on standard error where it has set up no logging."""
    logging.getLogger("rollbook").warning(line)
