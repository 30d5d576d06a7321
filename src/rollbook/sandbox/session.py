"""A session: turns of untrusted code that share variables, functions, classes, modules and a folder.

Also what sessions need: the pool that bounds how many are open (one zygote for all of them, started with the first),
the queue that runs the turns of a session one after another on threads shared with others, and the wrappers that make
an async and a blocking method of one body, so that its signature is written once.
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
from rollbook.errors import UsageError
from rollbook.sandbox.errors import SandboxError, SandboxFull
from rollbook.sandbox.launcher import GuestLauncher
from rollbook.sandbox.limits import Limits, check_text, choose_limits
from rollbook.sandbox.results import Result

P = ParamSpec("P")
T = TypeVar("T")
WAIT_S = 3600.0


class ThreadOwner(Protocol):
    """Who has threads to do things in."""

    def _submit(self, work: Callable[[], Any]) -> Future[Any]: ...


W = TypeVar("W", bound=ThreadOwner)


def async_method(body: Callable[Concatenate[W, P], T]) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """The body, done in one of its owner's threads while the loop goes on."""

    @wraps(body)
    async def call(self: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await asyncio.wrap_future(self._submit(partial(body, self, *args, **kwargs)))
        return result

    return call


def blocking_method(body: Callable[Concatenate[W, P], T]) -> Callable[Concatenate[W, P], T]:
    """The body, done in one of its owner's threads while this one waits."""

    @wraps(body)
    def call(self: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._submit(partial(body, self, *args, **kwargs)).result(WAIT_S)
        return result

    return call


async def run_to_completion(work: Callable[[], T]) -> T:
    """Done in a thread, and cancelled only when it is done: what opens or closes must not be left halfway."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        done.exception()  # nobody else will ask for it
        raise cancelled
    return done.result()


R = TypeVar("R")
MAX_WAITING = 1000


class SerialQueue:
    """Pieces of work wait here without a thread; only the first in line has one."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = self._closed = False
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Do this after all that came before it."""
        future: Future[R] = Future()
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if len(self._waiting) >= MAX_WAITING:
                raise SandboxFull(f"{MAX_WAITING} turns wait for one session: await some of them first")
            self._waiting.append((future, work))
            first, self._busy = not self._busy, True
        if first:
            self._start_worker()
        return future

    def try_acquire(self) -> bool:
        """Be the one who works, in one's own thread, if nobody else does or waits; whoever gets a yes gives it back."""
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            was_busy, self._busy = self._busy, True
        return not was_busy

    def release(self) -> None:
        """Whoever came meanwhile is next."""
        self._run_following()

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
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                future.set_exception(error)
        self._run_following()

    def _run_following(self) -> None:
        with self._lock:
            go_on = self._busy = bool(self._waiting)
        if go_on:  # not by `_busy`: whoever came since has hired somebody already
            self._start_worker()

    def close(self) -> None:
        """Nothing more is done; whoever waits is told."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(SandboxError("the sandbox is closed"))


PER_SESSION = ("memory_mb", "processes", "files_mb")


class SessionRegistry(Protocol):
    """Where sessions live: it has room for so many."""

    def add(self, session: Session) -> None:
        """Take a place, or SandboxError."""

    def remove(self, session: Session) -> None:
        """Give it back."""


class SessionState(Protocol):
    """What a session has made so far, in whatever processes."""

    def run_turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Go on from here."""

    def close(self) -> None:
        """Let it go."""


class Session:
    """Use as a context, async or plain; `run` for the one, `run_sync` for the other. Turns run one at a time, in order.

    A turn that ends the process (a timeout, a crash, an exit, a kill) loses the state, unless the session takes
    snapshots: then it is rolled back. The turn after a loss begins afresh, with the first files, and says so.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        pool: Executor,
        limits: Limits,
        begin: Callable[[], SessionState],
        slots: Semaphore,
    ) -> None:
        self.limits = limits
        self._registry, self._begin, self._slots = registry, begin, slots
        self._queue = SerialQueue(pool)
        self._state: SessionState | None = None
        self._open = False

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        return self._queue.submit(work)

    @property
    def alive(self) -> bool:
        """Whether what earlier turns made is still there; if not, the next turn begins afresh."""
        return self._state is not None

    def _turn(self, code: str, limits: Limits | None = None) -> Result:
        """Run code in the session. Of the limits, a turn may have its own seconds, wall_seconds and output_kb."""
        check_text("code", code)
        limits = check_turn_limits(limits, self.limits)
        if not self._open:
            raise SandboxError("the session is not open: use it as a context")
        restarted = self._state is None
        state = self._state or self._begin()
        self._state = None  # whatever is raised from here on, the state is no longer to be trusted
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
        if self._slots.acquire(blocking=False):  # to change threads would take as long as the turn
            try:
                done = self._turn_if_idle(code, limits)
            finally:
                self._slots.release()
            if done:
                return done
        waiting: Future[Result] = self._queue.submit(partial(self._turn, code, limits))
        return waiting.result(WAIT_S)

    def _turn_if_idle(self, code: str, limits: Limits | None) -> Result | None:
        """In this thread, if nobody is before us and there is a state: a zygote ends with the thread that starts it."""
        if not self._queue.try_acquire():
            return None
        try:
            return self._turn(code, limits) if self._state is not None else None
        finally:
            self._queue.release()

    run = async_method(_turn)
    run_sync = _turn_blocking

    def _enter(self) -> Session:
        self._registry.add(self)
        try:
            self._state, self._open = self._begin(), True
        except BaseException:
            self._registry.remove(self)
            raise
        return self

    def _leave(self) -> None:
        if self._open:
            self.close_state()
            self._registry.remove(self)

    def close_state(self) -> None:
        """Let go of the state, in a thread that has the session to itself."""
        self._open = False
        if self._state:
            self._state.close()
            self._state = None

    def abandon(self) -> None:
        """The sandbox is closed: whoever waits for a turn is told."""
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
    """A turn's limits; what cannot change from turn to turn must be the session's."""
    limits = choose_limits(limits, session)
    for name in PER_SESSION:
        if getattr(limits, name) != getattr(session, name):
            raise UsageError(
                f"limit {name}={getattr(limits, name)} of a turn: the session has {getattr(session, name)} for good; "
                "use msgspec.structs.replace(session.limits, seconds=...)"
            )
    return limits


class SessionPool:
    """A bounded number of sessions. Between turns they hold descriptors and memory, but no thread and no slot."""

    def __init__(self, start: Callable[[], GuestLauncher], most: int) -> None:
        self._start_launcher, self._most = start, most
        self._launcher: GuestLauncher | None = None
        self._sessions: set[Session] = set()
        self._lock = threading.Lock()
        self._closed = False

    def add(self, session: Session) -> None:
        """Take a place."""
        with self._lock:
            if len(self._sessions) >= self._most:
                raise SandboxFull(
                    f"{self._most} sessions are open: close some, or allow more with Sandbox(sessions=...)"
                )
            self._sessions.add(session)

    def remove(self, session: Session) -> None:
        """Give it back."""
        with self._lock:
            self._sessions.discard(session)

    def get_launcher(self) -> GuestLauncher:
        """The zygote; a new one when it has died, with all that it held."""
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._launcher and not self._launcher.alive:
                self._launcher.close()
                self._launcher = None
            self._launcher = self._launcher or self._start_launcher()
            return self._launcher

    def kill(self) -> None:
        """End every session, so that no turn goes on; threads may still hold them."""
        with self._lock:
            self._closed = True
            if self._launcher:
                self._launcher.close()

    def close(self) -> None:
        """Let go of what the sessions held, once no thread works for them."""
        for session in list(self._sessions):
            session.abandon()
        self._sessions.clear()
