"""Two guests that take turns start on one core; one that takes long may use every core, with all that it started."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from rollbook.sandbox import Limits, Sandbox, supervision
from rollbook.sandbox.grading import Grader
from rollbook.sandbox.supervision import next_core, release_cores

CORES = len(os.sched_getaffinity(0))
several = pytest.mark.skipif(CORES < 2, reason="this machine lets us use one core alone")
CODE = """
import os, threading, time

def cores():
    return len(os.sched_getaffinity(0))

def cores_later():
    until = time.monotonic() + 10
    while cores() == 1 and time.monotonic() < until:
        pass
    return cores()

def cores_of_a_thread():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(cores_later()))
    thread.start()
    thread.join()
    return seen[0]
"""


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Sandbox(Limits(seconds=10.0), size=1) as box:
        yield Grader(box)


def test_each_core_has_its_turn() -> None:
    assert {next_core() for _ in range(CORES)} == os.sched_getaffinity(0)


@several
def test_both_guests_begin_on_the_same_core(grader: Grader) -> None:
    tests = "import os\nassert cores() == len(os.sched_getaffinity(0)) == 1"
    assert grader.function_sync(CODE, tests, "cores").passed


@several
@pytest.mark.parametrize("name", ["cores_later", "cores_of_a_thread"])
def test_whoever_takes_long_may_use_every_core(grader: Grader, name: str) -> None:
    verdict = grader.function_sync(CODE, f"assert {name}() == {CORES}", name)
    assert verdict.passed, verdict


@several
def test_a_guest_is_not_released_before_it_has_come(grader: Grader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "TOGETHER_S", 0.0)
    assert grader.function_sync(CODE, f"assert cores_later() == {CORES}", "cores_later").passed


@several
def test_what_is_released_is_every_thread() -> None:
    allowed, go = os.sched_getaffinity(0), threading.Event()
    seen: list[set[int]] = []

    def wait() -> None:
        os.sched_setaffinity(0, [min(allowed)])
        here.set()
        go.wait(60)
        seen.append(os.sched_getaffinity(0))

    here = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    here.wait(60)
    release_cores(os.getpid())
    go.set()
    thread.join()
    assert seen == [allowed]


@several
def test_a_thread_that_is_born_while_we_walk_is_released_too(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, go, seen = os.sched_getaffinity(0), threading.Event(), []
    waiting: list[threading.Thread] = []

    def wait(here: threading.Event) -> None:
        os.sched_setaffinity(0, [min(allowed)])
        here.set()
        go.wait(60)
        seen.append(os.sched_getaffinity(0))

    def begin() -> None:
        here = threading.Event()
        waiting.append(threading.Thread(target=wait, args=[here]))
        waiting[-1].start()
        here.wait(60)

    def start_thread_while_listing(pid: int) -> list[int]:
        found = threads(pid)
        if len(waiting) < 3:
            begin()
        return found

    threads = supervision._list_threads
    monkeypatch.setattr(supervision, "_list_threads", start_thread_while_listing)
    begin()
    assert release_cores(os.getpid()), "somebody was found"
    assert not release_cores(os.getpid())
    go.set()
    for thread in waiting:
        thread.join()
    assert seen == [allowed] * 3


def test_a_process_that_is_gone_needs_no_release() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    before = os.sched_getaffinity(0)
    release_cores(child)
    assert os.sched_getaffinity(0) == before


@several
def test_a_turn_begins_where_it_is_waited_for_and_may_go_anywhere_when_it_takes_long() -> None:
    with Sandbox(Limits(seconds=10.0), size=1) as box, box.session() as session:
        session.run_sync(CODE)
        assert session.run_sync("cores()").value == "1"
        assert session.run_sync("cores_later()").value == str(CORES)
        assert session.run_sync("cores()").value == "1"
