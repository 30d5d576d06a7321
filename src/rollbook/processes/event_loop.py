"""The event loop that work runs on: uvloop where installed, an end that no task can delay, cheap deadlines.

A deadline of 30 s or more has no timer of its own: all of them are checked once a second, since a timer for each of
thousands would cost more.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

GC_THRESHOLD = 20_000
CANCEL_GRACE_S = 1.0
START_S = 10.0
"""The most that a thread takes to begin its work."""
ENVIRONMENT_CODE_TASK = "environment code"
"""The name of tasks that run an environment's own code, which may ignore being cancelled."""

T = TypeVar("T")
P = ParamSpec("P")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
"""Makes a coroutine."""


def make_blocking(prepare: Callable[P, Work[T]], name: str) -> Callable[P, T]:
    """Return a function that does the work which `prepare` returns, with the parameters of `prepare`."""

    @wraps(prepare)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(prepare(*args, **kwargs))

    _describe_call(call, prepare, name)
    return call


def make_awaitable(prepare: Callable[P, Work[T]], name: str) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the same as a coroutine function."""

    @wraps(prepare)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await prepare(*args, **kwargs)()

    _describe_call(call, prepare, name)
    return call


def _describe_call(call: Callable[..., object], prepare: Callable[..., object], name: str) -> None:
    """Give a function its name, and a signature that returns what the work returns, for help() and editors."""
    signature = inspect.signature(prepare)
    result = str(signature.return_annotation).removeprefix("Work[").removesuffix("]")
    call.__name__ = call.__qualname__ = name
    call.__annotations__ = {**prepare.__annotations__, "return": result}
    call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]


def run_blocking(work: Work[T]) -> T:
    """Run a coroutine to its end; where a loop is running already (a notebook's), in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_event_loop(work)
    return _run_in_thread(work)


def _run_in_thread(work: Work[T]) -> T:
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def run() -> T:
        started.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await work()

    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(run_event_loop, run).result()
        except KeyboardInterrupt:  # raised in this thread: the work is notified, and the pool waits for its end
            with suppress(TimeoutError):  # it came before the work had begun
                loop, task = started.result(START_S)
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)
            raise


async def run_to_completion(work: Callable[[], T]) -> T:
    """Run `work` in a thread; a cancellation is raised when it is done, so that it never stops halfway."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        done.exception()  # no one else will read it
        raise cancelled
    return done.result()


def run_event_loop(make_coroutine: Callable[[], Coroutine[None, None, T]]) -> T:
    """Run a coroutine on uvloop where there is one."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with collect_garbage_rarely(), asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(make_coroutine())
        finally:
            abandon_stuck_tasks(runner.get_loop())


@contextmanager
def collect_garbage_rarely() -> Iterator[None]:
    """Collect less often: rollouts make few cycles, and searching every 700 objects took a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def abandon_stuck_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let the program end although environment code does not react to being cancelled."""
    stuck = {task for task in asyncio.all_tasks(loop) if task.get_name() == ENVIRONMENT_CODE_TASK}
    for task in stuck:
        task.cancel()
    if stuck:
        _, stuck = loop.run_until_complete(asyncio.wait(stuck, timeout=CANCEL_GRACE_S))
    for task in stuck:
        asyncio._unregister_task(task)


DEADLINE_CHECK_S = 1.0
EXACT_DEADLINE_S = 30.0
"""Below this a deadline has a timer of its own; above it, being up to a second late does not matter."""


def is_being_cancelled() -> bool:
    """Whether the current task is being cancelled, as opposed to something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def timeout_after(seconds: float) -> asyncio.Timeout | Deadline:
    """`async with timeout_after(600):` raises TimeoutError if it takes longer, as asyncio.timeout does."""
    return asyncio.timeout(seconds) if seconds < EXACT_DEADLINE_S else Deadline(seconds)


class Deadline:
    """Cancels its task when the time is over; `expired` distinguishes that from another cancellation."""

    __slots__ = ("_cancelling", "_checker", "_expired", "_seconds", "_task", "due")

    def __init__(self, seconds: float) -> None:
        self._seconds, self._expired = seconds, False

    def expired(self) -> bool:
        """Return whether the time was over."""
        return self._expired

    async def __aenter__(self) -> Deadline:
        task = asyncio.current_task()
        assert task
        loop = asyncio.get_running_loop()
        self._task, self._cancelling = task, task.cancelling()
        self.due = loop.time() + self._seconds
        self._checker = _checkers.get(loop) or _checkers.setdefault(loop, _DeadlineChecker(loop))
        self._checker.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._checker.pending.pop(self, None)
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if self._expired and self._task.uncancel() <= self._cancelling and cancelled:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the task: the time is over."""
        self._expired = True
        self._task.cancel()


class _DeadlineChecker:
    """The deadlines of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._later, self._time = loop.call_later, loop.time
        self._timer: asyncio.TimerHandle | None = None
        self.pending: dict[Deadline, None] = {}

    def add(self, deadline: Deadline) -> None:
        self.pending[deadline] = None
        if self._timer is None:
            self._timer = self._later(DEADLINE_CHECK_S, self._check)

    def _check(self) -> None:
        now = self._time()
        for deadline in [one for one in self.pending if one.due <= now]:
            del self.pending[deadline]
            deadline.expire()
        self._timer = self._later(DEADLINE_CHECK_S, self._check) if self.pending else None


_checkers: WeakKeyDictionary[asyncio.AbstractEventLoop, _DeadlineChecker] = WeakKeyDictionary()
