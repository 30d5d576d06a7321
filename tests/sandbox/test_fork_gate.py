"""Who may pass the gate of a snapshot session: one fork per turn, and the new process that announces itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from rollbook.errors import SandboxError
from rollbook.sandbox import Limits, session_state, supervision
from rollbook.sandbox.inner.kernel import ARCH
from rollbook.sandbox.inner.seccomp import CALLS, HELLO_CALL
from rollbook.sandbox.session_state import (
    CLEAR_TID,
    SET_TID,
    SIGCHLD,
    ForkArrival,
    ForkGate,
    ForkWatchdog,
    HeldSyscall,
    find_first_holder,
    open_gate,
)
from rollbook.sandbox.supervision import GuestProcess
from support.alive import eventually, open_fds

CLONE, HELLO = CALLS[ARCH]["clone"], CALLS[ARCH][HELLO_CALL]
FORK_FLAGS = SIGCHLD | SET_TID | CLEAR_TID


def held(number: int, argument: int = FORK_FLAGS, pid: int = 5, which: int = 1) -> HeldSyscall:
    return HeldSyscall(which, pid, number, argument)


@pytest.mark.parametrize(
    ("call", "is_fork", "is_hello"),
    [
        (held(CLONE), True, False),
        (held(CLONE, SIGCHLD), True, False),
        (held(CLONE, SIGCHLD | SET_TID), True, False),
        (held(CLONE, SIGCHLD | 0x100), False, False),  # shares its memory
        (held(CLONE, SET_TID), False, False),
        (held(HELLO), False, True),
        (held(HELLO + 1), False, False),
    ],
)
def test_only_a_plain_fork_is_a_fork(call: HeldSyscall, is_fork: bool, is_hello: bool) -> None:
    assert (call.is_fork, call.is_hello) == (is_fork, is_hello)


class Process:
    """A process that keeps whether its descriptor was closed."""

    def __init__(self, pid: int) -> None:
        self.pid, self.closed, self.killed = pid, False, list[str]()

    def close(self) -> None:
        self.closed = True

    def kill(self, status: str) -> None:
        self.killed.append(status)


class Gate:
    """A gate at which these calls wait."""

    def __init__(self, *calls: HeldSyscall, gone: bool = False) -> None:
        self.calls, self.gone = list(calls), gone
        self.answers: list[tuple[str, HeldSyscall]] = []
        self.opened: list[Process] = []

    def next_call(self) -> HeldSyscall | None:
        return self.calls.pop(0) if self.calls else None

    def open_caller(self, call: HeldSyscall) -> Process | None:
        if self.gone:
            return None
        self.opened.append(Process(call.pid))
        return self.opened[-1]

    def allow(self, call: HeldSyscall) -> None:
        self.answers.append(("allow", call))

    def refuse(self, call: HeldSyscall) -> None:
        self.answers.append(("refuse", call))

    def acknowledge(self, call: HeldSyscall) -> None:
        self.answers.append(("acknowledge", call))


def make_arrival(gate: Gate, forks: int = 1, known: int = 4) -> ForkArrival:
    return ForkArrival(gate, forks, known)  # type: ignore[arg-type]


def test_one_fork_is_allowed_and_then_the_new_process_arrives() -> None:
    fork, hello = held(CLONE, pid=4), held(HELLO, pid=5)
    gate = Gate(fork, hello)
    arrival = make_arrival(gate)
    assert arrival.check_gate() is False
    assert gate.answers == [("allow", fork)]
    assert arrival.check_gate() is True
    assert arrival.process is gate.opened[0]
    assert gate.answers == [("allow", fork)]  # it waits until the holder is stopped
    arrival.admit()
    assert gate.answers[-1] == ("acknowledge", hello)
    assert arrival.check_gate() is False  # nothing waits
    arrival.release()
    assert gate.opened[0].closed


def test_what_is_not_expected_is_refused() -> None:
    early, fork, second = held(HELLO), held(CLONE), held(CLONE, which=2)
    own = held(HELLO, pid=4)
    gate = Gate(early, fork, second, own)
    arrival = make_arrival(gate)
    assert [arrival.check_gate() for _ in range(4)] == [False] * 4
    assert gate.answers == [("refuse", early), ("allow", fork), ("refuse", second), ("refuse", own)]
    assert [process.closed for process in gate.opened] == [True]  # the holder announced itself
    assert arrival.process is None
    arrival.release()


def test_a_process_that_is_gone_has_not_arrived() -> None:
    gate = Gate(held(HELLO), gone=True)
    arrival = make_arrival(gate, forks=0)
    assert arrival.check_gate() is False
    assert gate.answers == [("refuse", held(HELLO))]


def test_who_calls_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_state, "MAX_REFUSALS", 2)
    gate = Gate(*[held(CLONE)] * 3)
    arrival = make_arrival(gate, forks=0)
    assert [arrival.check_gate() for _ in range(3)] == [False, False, True]
    gate.calls = [held(CLONE)]
    runner: Any = Process(5)
    assert arrival.refuse_others(runner) is False
    assert runner.killed == ["killed"]
    assert arrival.refuse_others(runner) is False  # nothing waits
    assert runner.killed == ["killed"]


def test_calls_of_a_turn_are_refused_without_killing_it_at_once() -> None:
    gate = Gate(held(CLONE))
    runner: Any = Process(5)
    make_arrival(gate, forks=0).refuse_others(runner)
    assert (gate.answers, runner.killed) == ([("refuse", held(CLONE))], [])


def test_a_gate_without_a_listener_answers_nobody() -> None:
    read, write = os.pipe()
    gate = ForkGate(read)
    assert gate.fileno() == read
    assert gate.next_call() is None
    os.write(write, b"x")
    assert gate.next_call() is None  # it is ready, and no call waits
    before = len(open_fds())
    assert gate.open_caller(held(HELLO, pid=os.getpid())) is None
    assert gate.open_caller(held(HELLO, pid=1 << 30)) is None
    assert len(open_fds()) == before
    for answer in (gate.allow, gate.acknowledge, gate.refuse):
        answer(held(CLONE))  # its process has died: nobody waits for it
    gate.close()
    os.close(write)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


class Started:
    """A guest that has started with these descriptors."""

    streams = ()

    def __init__(self, *handles: int) -> None:
        self.handles = list(handles)
        self.control, self.end = os.pipe()
        self.process: Any = None

    def wait_until_started(self, limits: Limits) -> list[int]:
        return self.handles


def test_a_kernel_without_notifications_has_no_snapshots() -> None:
    guest: Any = Started()
    with pytest.raises(SandboxError, match="snapshots need seccomp's user notification"):
        open_gate(guest, Limits())
    read, write = os.pipe()
    guest = Started(read)
    assert open_gate(guest, Limits()).fileno() == read
    for handle in (read, write):
        os.close(handle)


def test_a_first_process_that_ends_before_it_arrives_is_an_error(sleeper: GuestProcess) -> None:
    guest: Any = Started()
    guest.process = sleeper
    read, write = os.pipe()
    os.write(guest.end, b"x")
    with pytest.raises(SandboxError, match="the session's first process did not arrive"):
        find_first_holder(guest, ForkGate(read), Limits())
    for handle in (read, write, guest.control, guest.end):
        os.close(handle)


@pytest.fixture
def sleeper() -> Iterator[GuestProcess]:
    pid = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")
    process = GuestProcess(os.pidfd_open(pid))
    assert eventually(lambda: supervision.is_asleep(pid))
    yield process
    process.kill()
    os.waitpid(pid, 0)
    process.close()


def test_a_process_that_sleeps_instead_of_forking_is_killed_after_some_looks(
    sleeper: GuestProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "CHECK_S", 0.0)
    dog = ForkWatchdog(sleeper, Limits(), [])
    for _ in range(session_state.MAX_SLEEPS):
        dog._check_limits()
    assert dog.kill_status is None
    dog._check_limits()
    assert (dog.kill_status, sleeper.was_killed) == ("killed", True)


def test_looks_that_follow_at_once_do_not_count(sleeper: GuestProcess) -> None:
    dog = ForkWatchdog(sleeper, Limits(), [])
    for _ in range(2 * session_state.MAX_SLEEPS):
        dog._check_limits()
    assert dog.kill_status is None
    assert 0 < dog._poll_timeout_s() <= session_state.CHECK_S


@pytest.mark.parametrize(("seconds", "allowed"), [(5.0, 1.0), (0.25, 0.25)])
def test_copying_memory_may_take_some_time_and_no_more(
    sleeper: GuestProcess, monkeypatch: pytest.MonkeyPatch, seconds: float, allowed: float
) -> None:
    monkeypatch.setattr(session_state, "CHECK_S", 0.0)
    cpu = [3.0]
    monkeypatch.setattr(sleeper, "cpu_s", lambda: cpu[0])
    dog = ForkWatchdog(sleeper, Limits(seconds=seconds, memory_mb=512), [])
    for spent, status in ((allowed + 0.25, None), (allowed + 0.26, "killed")):
        cpu[0] = 3.0 + spent
        dog._check_limits()
        assert dog.kill_status == status


def test_the_time_of_forks_that_are_on_their_way_counts_too(
    sleeper: GuestProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "CHECK_S", 0.0)
    monkeypatch.setattr(session_state, "list_children", lambda pid: [os.getpid(), 1 << 30])
    monkeypatch.setattr(session_state, "read_cpu_s", lambda pid: 2.0 if pid == os.getpid() else 0.0)
    dog = ForkWatchdog(sleeper, Limits(), [])
    assert dog._list_new_forks() == [os.getpid()]  # a dead one belongs to an earlier turn
    dog._check_limits()
    assert dog.kill_status == "killed"


def test_the_signal_of_a_fork_is_that_of_a_child() -> None:
    assert signal.SIGCHLD == SIGCHLD
