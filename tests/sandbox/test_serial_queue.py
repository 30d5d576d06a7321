"""SerialQueue: work runs in order, one piece at a time, and no caller waits forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Semaphore
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.errors import SandboxError, SandboxFull
from rollbook.sandbox import Limits, Result
from rollbook.sandbox.session import MAX_WAITING, SerialQueue, Session, SessionPool


def test_pieces_are_done_in_order_and_never_two_at_once() -> None:
    done: list[int] = []
    inside = threading.Semaphore(1)

    def work(n: int) -> int:
        assert inside.acquire(blocking=False)
        time.sleep(0.001)
        done.append(n)
        inside.release()
        return n

    with ThreadPoolExecutor(4) as pool:
        queue = SerialQueue(pool)
        futures = [queue.submit(lambda n=n: work(n)) for n in range(30)]  # type: ignore[misc]
        assert [f.result(10) for f in futures] == done == list(range(30))


def test_who_waits_in_line_holds_no_thread() -> None:
    with ThreadPoolExecutor(2) as pool:
        queue, gate = SerialQueue(pool), threading.Event()
        futures = [queue.submit(lambda: gate.wait(10)) for _ in range(10)]
        assert pool.submit(lambda: "free").result(5) == "free"
        gate.set()
        assert all(f.result(10) for f in futures)


def test_an_error_belongs_to_its_piece_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        queue = SerialQueue(pool)
        bad, good = queue.submit(lambda: 1 / 0), queue.submit(lambda: 2)
        with pytest.raises(ZeroDivisionError):
            bad.result(5)
        assert good.result(5) == 2


def test_a_closed_line_tells_who_waits_and_who_comes() -> None:
    with ThreadPoolExecutor(1) as pool:
        queue, gate = SerialQueue(pool), threading.Event()
        first, second = queue.submit(lambda: gate.wait(10)), queue.submit(lambda: 1)
        time.sleep(0.05)
        queue.close()
        with pytest.raises(SandboxError, match="closed"):
            second.result(5)
        with pytest.raises(SandboxError, match="closed"):
            queue.submit(lambda: 1)
        gate.set()
        assert first.result(5)


def test_a_pool_that_is_shut_down_is_a_closed_line() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(SandboxError, match="closed"):
        SerialQueue(pool).submit(lambda: 1).result(5)


def test_the_line_has_an_end() -> None:
    with ThreadPoolExecutor(1) as pool:
        queue, gate = SerialQueue(pool), threading.Event()
        queue.submit(lambda: gate.wait(10))
        time.sleep(0.05)
        for _ in range(MAX_WAITING):
            queue.submit(lambda: None)
        with pytest.raises(SandboxError, match="wait for one session"):
            queue.submit(lambda: None)
        gate.set()


def test_who_takes_the_line_works_in_its_own_thread_and_the_others_wait() -> None:
    with ThreadPoolExecutor(2) as pool:
        queue = SerialQueue(pool)
        assert queue.try_acquire()
        assert not queue.try_acquire()
        waits = queue.submit(lambda: 1)
        time.sleep(0.02)
        assert not waits.done()
        queue.release()
        assert waits.result(10) == 1
        assert queue.submit(lambda: 2).result(10) == 2
        queue.close()
        with pytest.raises(SandboxError, match="closed"):
            queue.try_acquire()


class InterruptedLock:
    """A lock that lets another action happen as soon as it is released."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._lock, self._act = threading.Lock(), [act]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._act:
            self._act.pop()()


class RecordingPool(Executor):
    """A pool that only records what is submitted."""

    def __init__(self) -> None:
        self.submitted: list[Callable[[], object]] = []

    def submit(self, work: Callable[[], object]) -> Future[object]:  # type: ignore[override]
        self.submitted.append(work)
        return Future()


def test_who_comes_the_moment_another_ends_has_one_thread_and_not_two() -> None:
    """A second one would find nothing to do and mark the queue idle; the next piece would not wait for the first."""
    pool = RecordingPool()
    queue = SerialQueue(pool)
    assert queue.try_acquire()
    queue._lock = InterruptedLock(lambda: queue.submit(lambda: None))  # type: ignore[assignment]
    queue.release()
    assert len(pool.submitted) == 1


class State:
    """The state of a session that answers what it is told."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.closed = list(outcomes), 0

    def run_turn(self, body: Any, limits: Limits) -> Result:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Result("ok", state=outcome)

    def close(self) -> None:
        self.closed += 1


def make_session(pool: Any, slots: Semaphore, *states: State) -> Session:
    begun = iter(states)
    return Session(SessionPool(lambda: None, 2), pool, Limits(), lambda: next(begun), slots)  # type: ignore[arg-type, return-value]


def test_a_blocking_turn_runs_in_its_own_thread_and_gives_its_slot_back() -> None:
    slots, state = Semaphore(1), State("kept", "kept", "kept")
    with ThreadPoolExecutor(1) as pool, make_session(pool, slots, state) as session:
        for _ in range(2):
            assert session.run_sync("1").status == "ok"
            assert slots.acquire(blocking=False)  # it is free again
            slots.release()
        assert slots.acquire(blocking=False)
        assert session.run_sync("1").state == "kept"  # no slot is free: it waits in the queue of the threads
    assert state.closed == 1


def test_a_state_that_is_lost_or_cannot_be_trusted_is_closed_and_the_next_turn_begins_afresh() -> None:
    lost, broken, fresh = State("lost"), State(SandboxError("it broke")), State("kept", "rolled back")
    with ThreadPoolExecutor(1) as pool, make_session(pool, Semaphore(1), lost, broken, fresh) as session:
        assert session.alive
        assert session.run_sync("1").restarted is False
        assert (session.alive, lost.closed) == (False, 1)
        with pytest.raises(SandboxError, match="it broke"):
            session.run_sync("1")
        assert (session.alive, broken.closed) == (False, 1)
        assert session.run_sync("1").restarted is True
        assert session.run_sync("1").restarted is False
        assert (session.alive, fresh.closed) == (True, 0)
    assert fresh.closed == 1
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(SandboxError, match="the session is not open: use it as a context"),
    ):
        make_session(pool, Semaphore(1), State("kept")).run_sync("1")


def test_a_session_that_cannot_begin_leaves_its_place() -> None:
    def fail() -> State:
        raise SandboxError("no zygote")

    sessions = SessionPool(lambda: None, 1)  # type: ignore[arg-type, return-value]
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            with pytest.raises(SandboxError, match="no zygote"):
                Session(sessions, pool, Limits(), fail, Semaphore(1)).__enter__()
        with Session(sessions, pool, Limits(), lambda: State(), Semaphore(1)):
            other = Session(sessions, pool, Limits(), lambda: State(), Semaphore(1))
            with pytest.raises(SandboxFull, match="1 sessions are open: close some"):
                other.__enter__()
        Session(sessions, pool, Limits(), lambda: State(), Semaphore(1)).__enter__()


def test_a_pool_of_sessions_closes_its_launcher_and_what_is_open() -> None:
    closed: list[str] = []
    launcher = SimpleNamespace(alive=True, close=lambda: closed.append("launcher"))
    sessions = SessionPool(lambda: launcher, 2)  # type: ignore[arg-type, return-value]
    assert sessions.get_launcher() is sessions.get_launcher() is launcher
    state = State()
    with ThreadPoolExecutor(1) as pool:
        session = Session(sessions, pool, Limits(), lambda: state, Semaphore(1)).__enter__()
        sessions.kill()
        assert (closed, state.closed) == (["launcher"], 0)
        with pytest.raises(SandboxError, match="the sandbox is closed"):
            sessions.get_launcher()
        sessions.close()
        assert (state.closed, session.alive) == (1, False)
        with pytest.raises(SandboxError, match="the sandbox is closed"):
            session.run_sync("1")
