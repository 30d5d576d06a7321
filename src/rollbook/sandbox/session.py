"""A session: turns of untrusted code that share variables, functions, classes, modules and a folder.

Also what sessions need: the pool that bounds how many are open (one zygote for all of them, started with the first),
the queue that runs the turns of a session one after another on threads shared with others, and the wrappers that make
an async and a blocking method from one function, so that its signature is written once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from functools import partial, wraps
from threading import Semaphore
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from rollbook.core import JSON
from rollbook.errors import SandboxError, SandboxFull, UsageError
from rollbook.sandbox.guest import Cancellation
from rollbook.sandbox.launcher import GuestLauncher
from rollbook.sandbox.limits import Limits, check_text, choose_limits
from rollbook.sandbox.results import Result

P = ParamSpec("P")
T = TypeVar("T")
WAIT_S = 3600.0


class ThreadOwner(Protocol):
    """An object that can run functions in its threads."""

    def _submit(self, work: Callable[[], Any]) -> Future[Any]: ...


W = TypeVar("W", bound=ThreadOwner)


def async_method(body: Callable[Concatenate[W, P], T]) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """Make a method that runs the body in one of its owner's threads and awaits it; cancelled, its guest is killed."""

    @wraps(body)
    async def call(self: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        cancellation = Cancellation()
        future = self._submit(partial(cancellation.run, partial(body, self, *args, **kwargs)))
        try:
            result: T = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise
        return result

    return call


def blocking_method(body: Callable[Concatenate[W, P], T]) -> Callable[Concatenate[W, P], T]:
    """Make a method that runs the body in one of its owner's threads and waits for it."""

    @wraps(body)
    def call(self: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._submit(partial(body, self, *args, **kwargs)).result(WAIT_S)
        return result

    return call


MAX_WAITING = 1000


class SerialQueue:
    """Runs pieces of work one after another. Only the first one occupies a thread; the others wait without one."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = self._closed = False
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after everything submitted before it."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if len(self._waiting) >= MAX_WAITING:
                raise SandboxFull(f"{MAX_WAITING} turns wait for one session: await some of them first")
            self._waiting.append((future, work))
            is_first, self._busy = not self._busy, True
        if is_first:
            self._start_worker()
        return future

    def try_acquire(self) -> bool:
        """Reserve an idle queue for work in the caller's thread; after True the caller must release it."""
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            was_busy, self._busy = self._busy, True
        return not was_busy

    def _start_worker(self) -> None:
        try:
            self._pool.submit(self._run_next)
        except RuntimeError:  # it is shut down
            self.close()

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:
                self._busy = False
                return
            future, work = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
                future.set_exception(error)
        self.release()

    def release(self) -> None:
        """Start the next piece of work, if one waits."""
        with self._lock:
            has_more = self._busy = bool(self._waiting)
        if has_more:  # not by `_busy`: a submit since then has started a worker itself
            self._start_worker()

    def close(self) -> None:
        """Start nothing more; work that waits fails with SandboxError."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(SandboxError("the sandbox is closed"))


PER_SESSION = ("memory_mb", "processes", "files_mb")


class SessionState(Protocol):
    """The state that the turns of a session have built so far, in one or more processes."""

    def run_turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Run a turn that continues from this state."""

    def close(self) -> None:
        """Discard the state."""


class Session:
    """Use as a context, async (`run`) or plain (`run_sync`). Turns run one at a time, in order.

    A turn that ends the process (a timeout, a crash, an exit, a kill) loses the state, unless the session takes
    snapshots: then it is rolled back. The turn after a loss starts with a fresh state and the first files, and reports
    `restarted`.
    """

    def __init__(
        self,
        sessions: SessionPool,
        threads: Executor,
        limits: Limits,
        begin: Callable[[], SessionState],
        slots: Semaphore,
    ) -> None:
        self.limits = limits
        self._sessions, self._begin, self._slots = sessions, begin, slots
        self._queue = SerialQueue(threads)
        self._state: SessionState | None = None
        self._open = False

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        return self._queue.submit(work)

    @property
    def alive(self) -> bool:
        """Whether the state of earlier turns still exists; if not, the next turn starts with a fresh one."""
        return self._state is not None

    def _turn(self, code: str, limits: Limits | None = None) -> Result:
        """Run code in the session. Of the limits, a turn may have its own seconds, wall_seconds and output_kb."""
        check_text("code", code)
        limits = check_turn_limits(limits, self.limits)
        if not self._open:
            raise SandboxError("the session is not open: use it as a context")
        restarted = self._state is None
        state = self._state or self._begin()
        self._state = None  # after any exception from here on the state cannot be trusted
        try:
            result = state.run_turn({"code": code}, limits)
        except BaseException:
            state.close()
            raise
        if result.state == "lost":
            state.close()
        else:
            self._state = state
        return msgspec.structs.replace(result, restarted=restarted) if restarted else result

    def _turn_blocking(self, code: str, limits: Limits | None = None) -> Result:
        """Run code in the session. Of the limits, a turn may have its own seconds, wall_seconds and output_kb."""
        if self._slots.acquire(blocking=False):  # changing threads would take as long as the turn
            try:
                result = self._turn_if_idle(code, limits)
            finally:
                self._slots.release()
            if result:
                return result
        future: Future[Result] = self._queue.submit(partial(self._turn, code, limits))
        return future.result(WAIT_S)

    def _turn_if_idle(self, code: str, limits: Limits | None) -> Result | None:
        """Run the turn in this thread if the queue is idle and there is a state (a zygote ends with its thread)."""
        if not self._queue.try_acquire():
            return None
        try:
            return self._turn(code, limits) if self._state is not None else None
        finally:
            self._queue.release()

    run = async_method(_turn)
    run_sync = _turn_blocking

    def _enter(self) -> Session:
        self._sessions.add(self)
        try:
            self._state, self._open = self._begin(), True
        except BaseException:
            self._sessions.remove(self)
            raise
        return self

    def _leave(self) -> None:
        if self._open:
            self.close_state()
            self._sessions.remove(self)

    def close_state(self) -> None:
        """Discard the state, in a thread that has the session to itself."""
        self._open = False
        if self._state:
            self._state.close()
            self._state = None

    def abandon(self) -> None:
        """End the session because the sandbox is closed: turns that wait fail with SandboxError."""
        self._queue.close()
        self.close_state()

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


def check_turn_limits(limits: Limits | None, session: Limits) -> Limits:
    """Return a turn's limits; UsageError when one differs that is fixed for the session."""
    limits = choose_limits(limits, session)
    for name in PER_SESSION:
        if getattr(limits, name) != getattr(session, name):
            raise UsageError(
                f"limit {name}={getattr(limits, name)} of a turn: the session has {getattr(session, name)} for good; "
                "use msgspec.structs.replace(session.limits, seconds=...)"
            )
    return limits


class SessionPool:
    """A bounded number of sessions. Between turns they hold descriptors and memory, but no thread and no run slot."""

    def __init__(self, start: Callable[[], GuestLauncher], max_sessions: int) -> None:
        self._start_launcher, self._max_sessions = start, max_sessions
        self._launcher: GuestLauncher | None = None
        self._sessions: set[Session] = set()
        self._lock = threading.Lock()
        self._closed = False

    def add(self, session: Session) -> None:
        """Register a session; SandboxFull when there are too many."""
        with self._lock:
            if len(self._sessions) >= self._max_sessions:
                raise SandboxFull(
                    f"{self._max_sessions} sessions are open: close some, or allow more with Sandbox(sessions=...)"
                )
            self._sessions.add(session)

    def remove(self, session: Session) -> None:
        """Remove a session."""
        with self._lock:
            self._sessions.discard(session)

    def get_launcher(self) -> GuestLauncher:
        """Return the launcher with the zygote; start a new one when it has died, with all its sessions."""
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._launcher and not self._launcher.alive:
                self._launcher.close()
                self._launcher = None
            self._launcher = self._launcher or self._start_launcher()
            return self._launcher

    def kill(self) -> None:
        """End the processes of every session, so that no turn continues; threads may still use the sessions."""
        with self._lock:
            self._closed = True
            if self._launcher:
                self._launcher.close()

    def close(self) -> None:
        """Discard the states of all sessions, once no thread works for them."""
        for session in list(self._sessions):
            session.abandon()
        self._sessions.clear()
