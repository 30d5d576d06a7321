"""Processes and pipes watched from outside: measured, stopped, killed, and held to their limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rollbook.errors import SandboxError
from rollbook.sandbox import Limits, supervision
from rollbook.sandbox.results import GuestReport, ProgramError, RunStatus
from rollbook.sandbox.supervision import (
    GuestProcess,
    OutputPipe,
    Watchdog,
    count_processes,
    is_asleep,
    is_dead,
    is_exiting,
    list_children,
    list_descendants,
    out_of_memory,
    read_total_cpu_s,
    status_of_death,
    status_of_report,
)
from support.alive import eventually

TREE = "sleep 60 & sleep 60 & wait"


class Child:
    """A process of ours, as a guest is seen."""

    def __init__(self, *command: str) -> None:
        self.popen = subprocess.Popen(command, start_new_session=True)
        self.guest = GuestProcess(os.pidfd_open(self.popen.pid))

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)
        self.guest.close()


@pytest.fixture
def sleeper() -> Iterator[Child]:
    child = Child("sleep", "60")
    assert eventually(lambda: is_asleep(child.guest.pid))
    yield child
    child.end()


@pytest.fixture
def tree() -> Iterator[Child]:
    child = Child("sh", "-c", TREE)
    assert eventually(lambda: len(list_children(child.guest.pid)) == 2)
    yield child
    child.end()


def test_a_process_is_stopped_resumed_and_killed(sleeper: Child) -> None:
    guest = sleeper.guest
    assert guest.pid == sleeper.popen.pid
    guest.stop()
    guest.wait_until_stopped()
    assert not is_asleep(guest.pid)
    guest.resume()
    assert eventually(lambda: is_asleep(guest.pid))
    assert (guest.has_ended(), guest.was_killed, is_dead(guest.pid), is_exiting(guest.pid)) == (False,) * 4
    assert guest.exit_code() is None
    guest.kill()
    assert guest.has_ended(10)
    assert guest.was_killed
    assert eventually(lambda: is_dead(guest.pid))
    assert (guest.exit_code(), is_exiting(guest.pid)) == (-signal.SIGKILL, True)
    sleeper.popen.wait(10)
    assert guest.exit_code() is None
    guest.kill()  # it is gone
    assert is_dead(guest.pid)


def test_a_process_that_ended_by_itself_was_not_killed() -> None:
    child = Child("sh", "-c", "exit 7")
    try:
        assert child.guest.has_ended(10)
        child.guest.kill()
        assert not child.guest.was_killed
        assert child.guest.exit_code() == 7
    finally:
        child.end()


def test_a_process_that_does_not_stop_is_an_error(sleeper: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "MAX_DYING_S", 0.02)
    with pytest.raises(SandboxError, match=f"process {sleeper.guest.pid} does not stop"):
        sleeper.guest.wait_until_stopped()


def test_time_and_memory_are_measured_and_kept_after_the_end() -> None:
    child = Child(sys.executable, "-c", "held = bytearray(b'x') * (32 << 20)\nwhile True: pass")
    guest = child.guest
    try:
        assert eventually(lambda: guest.cpu_s() > 0.05 and guest.read_memory().own_mb > 32)
        memory = guest.read_memory()
        assert 32 < memory.own_mb <= memory.peak_mb < 300
        assert guest.peak_mb() >= memory.peak_mb
        assert 0 < read_total_cpu_s(guest.pid) < 30
        before = guest.cpu_s()
        guest.kill()
        child.popen.wait(10)
        assert guest.cpu_s() >= before
        assert (guest.read_memory(), read_total_cpu_s(guest.pid)) == ((0.0, 0.0), 0.0)
    finally:
        child.end()


def test_fields_of_a_status_are_megabytes() -> None:
    text = b"Name:\tx\nVmHWM:\t   10240 kB\nRssAnon:\t 512 kB\n"
    found = [supervision._read_megabytes(text, name) for name in (b"VmHWM:", b"RssAnon:", b"RssShmem:")]
    assert found == [10.0, 0.5, 0.0]


@pytest.mark.parametrize("has_lists", [True, False])
def test_descendants_are_found_with_and_without_lists_of_the_kernel(
    tree: Child, monkeypatch: pytest.MonkeyPatch, has_lists: bool
) -> None:
    if not has_lists:
        monkeypatch.setattr(supervision, "HAS_CHILD_LISTS", False)
    pid = tree.guest.pid
    children = list_children(pid)
    assert len(children) == 2
    assert sorted(list_descendants(pid)) == sorted([pid, *children])
    assert list_children(children[0]) == []
    assert list_descendants(children[0]) == [children[0]]


def test_only_what_a_process_started_is_killed(tree: Child) -> None:
    children = list_children(tree.guest.pid)
    tree.guest.stop()
    tree.guest.wait_until_stopped()
    assert tree.guest.kill_others()
    assert all(map(is_dead, children))
    assert not is_dead(tree.guest.pid)


def test_processes_that_keep_appearing_are_given_up(tree: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append(pid))
    assert tree.guest.kill_others() is False
    assert len(kills) == 2 * supervision.KILL_ROUNDS


def test_the_living_processes_of_a_guest_are_counted(tree: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tree.guest.pid
    monkeypatch.setattr(supervision, "find_namespace_init", lambda of: of)
    assert count_processes(pid) == 3
    monkeypatch.setattr(supervision, "find_namespace_init", lambda of: pid)
    assert count_processes(list_children(pid)[0]) == 2  # the program around it does not count


def test_every_thread_is_released_until_none_has_to_be(sleeper: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    assert supervision.release_cores(sleeper.guest.pid) is False
    results = iter([True, False])
    seen = []

    def release(thread: int, cores: set[int]) -> bool:
        seen.append((thread, cores))
        return next(results, True)

    monkeypatch.setattr(supervision, "_release_thread", release)
    assert supervision.release_cores(sleeper.guest.pid) is True
    assert seen == [(sleeper.guest.pid, allowed)] * 2
    seen.clear()
    assert supervision.release_cores(sleeper.guest.pid) is True
    assert len(seen) == supervision.MAX_WALKS
    assert supervision._list_threads(sleeper.guest.pid) == [sleeper.guest.pid]
    assert supervision._list_threads(1 << 30) == []


def test_a_thread_is_released_once(sleeper: Child) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(sleeper.guest.pid, {min(allowed)})
    expected = len(allowed) > 1
    assert [supervision._release_thread(sleeper.guest.pid, allowed) for _ in range(2)] == [expected, False]
    assert os.sched_getaffinity(sleeper.guest.pid) == allowed
    assert supervision._release_thread(1 << 30, allowed) is False


def test_a_pipe_keeps_its_beginning_and_counts_the_rest() -> None:
    pipe = OutputPipe(5)
    try:
        pipe.drain()
        assert (pipe.text(), pipe.total, pipe.truncated, pipe.open) == ("", 0, False, True)
        for data, text, total in ((b"abc", "abc", 3), (b"de", "abcde", 5), (b"fg", "abcde", 7)):
            os.write(pipe.write_fd, data)
            pipe.drain()
            assert (pipe.text(), pipe.total, pipe.truncated) == (text, total, total > 5)
        pipe.reset(2)
        os.write(pipe.write_fd, b"x\xff")
        pipe.drain()
        assert (pipe.text(), pipe.total, pipe.truncated) == ("x\ufffd", 2, False)
    finally:
        pipe.close_both()
    for handle in (pipe.read_fd, pipe.write_fd):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


def test_a_pipe_is_closed_at_its_end() -> None:
    pipe = OutputPipe(5)
    os.close(pipe.write_fd)
    pipe.drain()
    assert not pipe.open
    pipe.close()


def test_a_pipe_is_read_no_further_than_a_pipe_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(handle: int, size: int) -> bytes:
        reads.append(size)
        return b"x" * size

    pipe = OutputPipe(5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read)
        pipe.drain()
    pipe.close_both()
    assert reads == [supervision.PIPE_BLOCK] * supervision.MAX_BLOCKS
    assert (pipe.text(), pipe.total) == ("xxxxx", 32 << 16)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1.0

    def cpu_s(self) -> float:
        return self.now


def watch(child: Child, clock: Clock, pipe: OutputPipe | None = None, **limits: float) -> Watchdog:
    own = Limits(**{"seconds": 2.0, "wall_seconds": 30.0, **limits})  # type: ignore[arg-type]
    return Watchdog(child.guest, own, [pipe] if pipe else [], clock=clock)


def test_only_time_since_the_beginning_counts(sleeper: Child) -> None:
    clock = Clock()
    dog = watch(sleeper, clock)
    assert dog.seconds == 0.0
    dog.begin()
    clock.now = 3.0
    assert dog.cpu_seconds == 2.0
    assert dog.cpu_since_begin(0.5) == 0.0
    assert 0 <= dog.seconds < 20
    dog._check_limits()
    assert dog.kill_status is None
    clock.now = 3.001
    dog._check_limits()
    assert (dog.kill_status, sleeper.guest.was_killed) == ("timeout", True)
    dog.kill("output")
    assert dog.kill_status == "timeout"


@pytest.mark.parametrize(("began", "status"), [(True, "timeout"), (False, "killed")])
def test_the_deadline_holds_for_the_set_up_and_for_the_run(sleeper: Child, began: bool, status: RunStatus) -> None:
    dog = watch(sleeper, Clock())
    if began:
        dog.begin()
    dog._deadline = time.monotonic() - 0.001
    dog._check_limits()
    assert dog.kill_status == status
    dog._check_limits()
    dog._deadline = time.monotonic() - 0.001
    with pytest.raises(SandboxError, match=f"process {sleeper.guest.pid} does not die"):
        dog._check_limits()


def test_a_flood_of_output_is_ended(sleeper: Child) -> None:
    pipe = OutputPipe(5)
    dog = watch(sleeper, Clock(), pipe)
    dog.begin()
    for total, status in ((supervision.FLOOD_BYTES, None), (supervision.FLOOD_BYTES + 1, "output")):
        pipe.total = total
        dog._check_limits()
        assert dog.kill_status == status
    pipe.close_both()


def test_more_processes_than_allowed_are_ended(tree: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "find_namespace_init", lambda pid: pid)
    for processes, status in ((3, None), (2, "killed")):
        dog = watch(tree, Clock(), processes=processes)
        dog.begin()
        dog._check_limits()
        assert dog.kill_status == status
    assert dog.kill_error == ProgramError("Killed", "killed: more than 2 processes at a time")


def test_no_limit_is_reached_before_the_next_look(sleeper: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "CORES", 4)
    clock = Clock()
    dog = watch(sleeper, clock)
    assert 29 < dog._poll_timeout_s() <= 30  # for the set-up
    dog.begin()
    assert dog._poll_timeout_s() == pytest.approx(2.0 / 4)
    clock.now = 2.9
    assert dog._poll_timeout_s() == pytest.approx(0.1 / 4)
    clock.now = 9.0
    assert dog._poll_timeout_s() == 0.002


def test_what_is_written_is_read_while_it_is_waited(sleeper: Child) -> None:
    pipe, (ready, ring) = OutputPipe(9), os.pipe()
    dog = watch(sleeper, Clock(), pipe)
    os.write(pipe.write_fd, b"said")
    os.write(ring, b"!!")
    calls = []

    def handle() -> bool:
        calls.append(os.read(ready, 1))
        return len(calls) == 2

    dog.wait({ready: handle})
    assert (calls, pipe.text()) == ([b"!", b"!"], "said")
    dog.unregister(ready)
    dog.unregister(ready)
    for handle_ in (ready, ring):
        os.close(handle_)
    pipe.close_both()


LIMITS = Limits(seconds=2.0)


@pytest.mark.parametrize(
    ("code", "cpu_s", "can_kill", "status"),
    [
        (0, 9.0, False, "ok"),
        (1, 9.0, False, "error"),
        (None, 9.0, False, "crash"),
        (-signal.SIGSEGV, 9.0, False, "crash"),
        (-signal.SIGXCPU, 0.0, False, "timeout"),
        (-signal.SIGKILL, 2.0, False, "timeout"),
        (-signal.SIGKILL, 1.9, True, "killed"),
        (-signal.SIGKILL, 2.0, True, "timeout"),
        (-signal.SIGKILL, 1.9, False, None),
    ],
)
def test_the_status_of_a_death(code: int | None, cpu_s: float, can_kill: bool, status: RunStatus | None) -> None:
    if status is None:
        with pytest.raises(SandboxError, match="the guest was killed from outside"):
            status_of_death(code, cpu_s, LIMITS, can_kill=can_kill)
    else:
        assert status_of_death(code, cpu_s, LIMITS, can_kill=can_kill) == status


def test_the_status_of_a_report() -> None:
    error = ProgramError("E", "why")
    for report, status in (
        (GuestReport(), "ok"),
        (GuestReport(exit=1), "error"),
        (GuestReport(error=error), "error"),
        (GuestReport(error=error, memory=True), "memory"),
    ):
        assert status_of_report(report) == status
    found = out_of_memory(Limits(memory_mb=64)).error
    assert found == ProgramError("OutOfMemory", "killed: more than 64 MB in all")


@pytest.mark.parametrize(("shared", "calls"), [(True, 2), (False, 0)])
def test_a_process_that_shares_a_core_is_released_until_nothing_is_left_to_release(
    sleeper: Child, monkeypatch: pytest.MonkeyPatch, shared: bool, calls: int
) -> None:
    released: list[int] = []
    results = iter([True, False, True])

    def release(pid: int) -> bool:
        released.append(pid)
        return next(results)

    monkeypatch.setattr(supervision, "TOGETHER_S", 0.0)
    monkeypatch.setattr(supervision, "release_cores", release)
    dog = Watchdog(sleeper.guest, Limits(), [], clock=Clock(), shared_core=shared)
    dog._check_limits()
    assert released == []  # not before it has begun
    dog.begin()
    for _ in range(4):
        time.sleep(0.001)
        dog._check_limits()
    assert released == [sleeper.guest.pid] * calls


def test_a_look_is_due_when_a_core_is_to_be_released_or_processes_are_to_be_counted(
    sleeper: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Watchdog(sleeper.guest, Limits(seconds=100.0), [], clock=Clock(), shared_core=True)
    shared.begin()
    assert 0 < shared._poll_timeout_s() <= supervision.TOGETHER_S
    several = Watchdog(sleeper.guest, Limits(seconds=100.0, processes=2), [], clock=Clock())
    assert several._poll_timeout_s() > 20  # nothing is counted before it has begun
    several.begin()
    assert several._poll_timeout_s() == 0.002
    counted: list[int] = []
    monkeypatch.setattr(supervision, "count_processes", lambda pid: counted.append(pid) or 1)
    for _ in range(3):
        several._check_limits()
    assert counted == [sleeper.guest.pid]
    assert 0.002 < several._poll_timeout_s() <= supervision.COUNT_S


def test_the_process_that_adopts_orphans_is_the_first_of_its_namespace_or_its_parent() -> None:
    assert supervision.find_namespace_init(os.getpid()) == os.getppid()
    assert supervision.find_namespace_init(1 << 30) == 1 << 30


def test_the_time_of_a_tree_never_falls(tree: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "find_namespace_init", lambda pid: pid)
    times = {tree.guest.pid: 1.0}
    monkeypatch.setattr(supervision, "read_total_cpu_s", lambda pid: times.get(pid, 0.25))
    clock = supervision.ProcessTreeClock(tree.guest)
    assert clock.cpu_s() == 1.5
    times[tree.guest.pid] = 0.5
    assert clock.cpu_s() == 1.5
    times[tree.guest.pid] = 2.0
    assert clock.cpu_s() == 2.5


def test_a_pipe_that_ended_is_waited_for_no_longer(sleeper: Child) -> None:
    pipe, (ready, ring) = OutputPipe(9), os.pipe()
    dog = watch(sleeper, Clock(), pipe)
    os.close(pipe.write_fd)
    calls: list[int] = []

    def handle() -> bool:
        calls.append(len(os.read(ready, 1)))
        return len(calls) == 2

    os.write(ring, b"!!")
    dog.wait({ready: handle})
    assert not pipe.open
    with pytest.raises(KeyError):
        dog._poll.unregister(pipe.read_fd)
    for one in (ready, ring):
        os.close(one)
    pipe.close()
