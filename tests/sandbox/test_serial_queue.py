"""SerialQueue: work runs in order, one piece at a time, and no caller waits forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

from rollbook.errors import SandboxError
from rollbook.sandbox.session import MAX_WAITING, SerialQueue


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
