"""A session: turns of untrusted code that share variables, functions, classes, modules and a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from threading import Semaphore
from typing import Any, Protocol

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.given import check_text, limits_of
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.line import Line
from rollbook.sandbox.result import Result
from rollbook.sandbox.twin import WAIT_S, awaited

PER_SESSION = ("memory_mb", "processes", "files_mb")


class Home(Protocol):
    """Where sessions live: it has room for so many."""

    def enter(self, session: Session) -> None:
        """Take a place, or SandboxError."""

    def leave(self, session: Session) -> None:
        """Give it back."""


class State(Protocol):
    """What a session has made so far, in whatever processes."""

    def turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Go on from here."""

    def close(self) -> None:
        """Let it go."""


class Session:
    """Use as a context, async or plain; `run` for the one, `run_sync` for the other. Turns run one at a time, in order.

    A turn that ends the process (a timeout, a crash, an exit, a kill) loses the state, unless the session takes
    snapshots: then it is rolled back. The turn after a loss begins afresh, with the first files, and says so.
    """

    def __init__(
        self, home: Home, pool: Executor, limits: Limits, begin: Callable[[], State], places: Semaphore
    ) -> None:
        self.limits = limits
        self._home, self._begin, self._places = home, begin, places
        self._line = Line(pool)
        self._state: State | None = None
        self._open = False

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        return self._line.submit(work)

    @property
    def alive(self) -> bool:
        """Whether what earlier turns made is still there; if not, the next turn begins afresh."""
        return self._state is not None

    def _turn(self, code: str, limits: Limits | None = None) -> Result:
        """Run code in the session. Of the limits, a turn may have its own seconds, wall_seconds and output_kb."""
        check_text("code", code)
        limits = turn_limits(limits, self.limits)
        if not self._open:
            raise SandboxError("the session is not open: use it as a context")
        restarted = self._state is None
        state = self._state or self._begin()
        self._state = None  # whatever is raised from here on, the state is no longer to be trusted
        try:
            result = state.turn({"code": code}, limits)
        except BaseException:
            state.close()
            raise
        if result.state == "lost":
            state.close()
        else:
            self._state = state
        return msgspec.structs.replace(result, restarted=restarted) if restarted else result

    def _turn_here(self, code: str, limits: Limits | None = None) -> Result:
        """Run code in the session. Of the limits, a turn may have its own seconds, wall_seconds and output_kb."""
        if self._places.acquire(blocking=False):  # to change threads would take as long as the turn
            try:
                done = self._turn_in_line(code, limits)
            finally:
                self._places.release()
            if done:
                return done
        waiting: Future[Result] = self._line.submit(partial(self._turn, code, limits))
        return waiting.result(WAIT_S)

    def _turn_in_line(self, code: str, limits: Limits | None) -> Result | None:
        """In this thread, if nobody is before us and there is a state: a zygote ends with the thread that starts it."""
        if not self._line.take():
            return None
        try:
            return self._turn(code, limits) if self._state is not None else None
        finally:
            self._line.give_back()

    run = awaited(_turn)
    run_sync = _turn_here

    def _enter(self) -> Session:
        self._home.enter(self)
        try:
            self._state, self._open = self._begin(), True
        except BaseException:
            self._home.leave(self)
            raise
        return self

    def _leave(self) -> None:
        if self._open:
            self.drop()
            self._home.leave(self)

    def drop(self) -> None:
        """Let go of the state, in a thread that has the session to itself."""
        self._open = False
        if self._state:
            self._state.close()
            self._state = None

    def abandon(self) -> None:
        """The sandbox is closed: whoever waits for a turn is told."""
        self._line.close()
        self.drop()

    def __enter__(self) -> Session:
        self._submit(self._enter).result(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._submit(self._leave).result(WAIT_S)

    async def __aenter__(self) -> Session:
        entering = self._submit(self._enter)
        try:
            await asyncio.shield(asyncio.wrap_future(entering))
        except asyncio.CancelledError:
            self._submit(self._leave)  # it may be open by then
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.wrap_future(self._submit(self._leave)))


def turn_limits(limits: Limits | None, session: Limits) -> Limits:
    """A turn's limits; what cannot change from turn to turn must be the session's."""
    limits = limits_of(limits, session)
    for name in PER_SESSION:
        if getattr(limits, name) != getattr(session, name):
            raise UsageError(
                f"limit {name}={getattr(limits, name)} of a turn: the session has {getattr(session, name)} for good; "
                "use msgspec.structs.replace(session.limits, seconds=...)"
            )
    return limits
