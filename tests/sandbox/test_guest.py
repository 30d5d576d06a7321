"""A guest seen from the host: what is closed with it, whose time counts, and what can have killed it."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from rollbook.errors import SandboxError
from rollbook.sandbox import Limits, guest
from rollbook.sandbox.guest import (
    Cancellation,
    ForgedMessage,
    Guest,
    GuestExit,
    HostChannel,
    killed_when_cancelled,
    make_memory_file,
    max_frame_bytes,
)
from rollbook.sandbox.inner.channel import LENGTH, Channel
from rollbook.sandbox.supervision import GuestProcess, ProcessTreeClock


def count_descriptors() -> int:
    gc.collect()  # what other tests left open is closed before it is counted, not between two counts
    return len(os.listdir("/proc/self/fd"))


def test_memory_that_cannot_be_written_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no memory")

    before = count_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(OSError, match="no memory"):
            make_memory_file("payload", b"x")
    assert count_descriptors() == before


def test_a_guest_without_descriptors_for_its_streams_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes, make = [], guest.OutputPipe

    def one_only(keep: int) -> Any:
        if pipes:
            raise OSError(24, "Too many open files")
        pipes.append(make(keep))
        return pipes[0]

    monkeypatch.setattr(guest, "OutputPipe", one_only)
    with pytest.raises(OSError, match="Too many open files"):
        Guest(Limits(), ("pid",))
    for handle in (pipes[0].read_fd, pipes[0].write_fd):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


@pytest.fixture
def process() -> Iterator[GuestProcess]:
    child = subprocess.Popen(["sleep", "60"])
    made = GuestProcess(os.pidfd_open(child.pid))
    yield made
    child.kill()
    child.wait(10)
    made.close()


class Clock:
    """The clock of a control group."""

    def cpu_s(self) -> float:
        return 0.5


class Account:
    """A memory account with a clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock, self.calls = clock, list[str]()

    def close_procs_files(self) -> None:
        self.calls.append("close files")

    def close(self) -> None:
        self.calls.append("close")

    def ran_out_of_memory(self) -> bool:
        return True

    def renew_limit(self, limits: Limits, own_mb: float) -> None:
        self.calls.append(f"renew {own_mb:g}")


class Folder:
    """A folder of the host."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def close_trees(self) -> None:
        self.calls.append("close trees")

    def close(self) -> None:
        self.calls.append("close")


def launch(made: Guest, process: GuestProcess, frames: tuple[Any, ...] = ()) -> list[int]:
    """Launch a guest with a zygote that is this test; return the descriptors that it was sent."""
    sent: list[int] = []

    def send(handles: list[int]) -> None:
        sent.extend(handles)
        zygote = Channel(os.dup(handles[-1]))
        zygote.send({"begun": True}, [process.pidfd])
        for frame in frames:
            zygote.send(frame)
        zygote.close()

    made.send_descriptors(send, os.open(os.devnull, os.O_RDONLY), [])
    return sent


@pytest.mark.parametrize(
    ("processes", "grouped", "cpu_s"),
    [(1, True, 1e6), (1, False, 1e6), (4, True, 0.5), (4, False, 1e6)],
)
def test_the_time_of_a_dead_guest_is_its_groups_or_the_kernels_last(
    process: GuestProcess, processes: int, grouped: bool, cpu_s: float
) -> None:
    account: Any = Account(Clock() if grouped else None)
    made = Guest(Limits(processes=processes), ("pid",), account)
    launch(made, process)
    assert made.cpu_s(GuestExit(0, 1e6, 0)) == cpu_s
    expected = {(1, True): GuestProcess, (1, False): GuestProcess, (4, True): Clock, (4, False): ProcessTreeClock}
    assert isinstance(made.clock, expected[processes, grouped])
    assert made.ran_out_of_memory()
    made.renew_memory(Limits(), 1.5)
    made.close()
    assert account.calls == ["close files", "renew 1.5", "close"]


def test_everything_of_a_guest_is_closed_with_it(process: GuestProcess) -> None:
    folder: Any = Folder()
    before = count_descriptors()
    made = Guest(Limits(), ("pid",), None, folder)
    sent = launch(made, process, ({"ended": 3, "cpu_s": 0.25, "peak_kb": 7},))
    assert len(sent) == 5  # stdin, stdout, stderr, channel, control
    assert made.wait_for_exit() == GuestExit(3, 0.25, 7)
    with pytest.raises(SandboxError, match="the sandbox broke: "):
        made.wait_for_exit()
    assert folder.calls == ["close trees"]
    assert made.ran_out_of_memory() is False
    made.renew_memory(Limits(), 1.5)
    made.close()
    assert folder.calls == ["close trees", "close"]
    assert count_descriptors() == before
    assert made.process.was_killed


def test_a_zygote_that_starts_no_guest_says_why() -> None:
    made = Guest(Limits(), ("pid",))

    def send(handles: list[int]) -> None:
        zygote = Channel(os.dup(handles[-1]))
        zygote.send({"failed": "no room"})
        zygote.close()

    with pytest.raises(SandboxError, match="no guest could be started: no room"):
        made.send_descriptors(send, os.open(os.devnull, os.O_RDONLY), [])
    made.close()


@pytest.mark.parametrize(
    ("processes", "layers", "can_kill"),
    [(1, ("pid",), False), (4, ("pid",), False), (1, ("bubblewrap",), False), (4, ("bubblewrap",), True)],
)
def test_only_below_bwrap_code_of_several_processes_can_kill_its_first(
    process: GuestProcess, processes: int, layers: tuple[str, ...], can_kill: bool
) -> None:
    made = Guest(Limits(processes=processes), layers)
    assert made.can_kill(process) is can_kill
    process.was_killed = True
    assert made.can_kill(process) is True
    for stream in made.streams:
        os.close(stream.write_fd)
    made.close()


def test_a_guest_that_reports_no_start_is_explained_by_its_own_words() -> None:
    made = Guest(Limits(), ("pid",))
    assert str(made.make_start_error()) == "isolation could not be set up: no message"
    os.write(made.err.write_fd, b" it is denied\n")
    assert str(made.make_start_error()) == "isolation could not be set up: it is denied"
    with pytest.raises(ForgedMessage, match="it did not report its start"):
        made.check_started(b'{"started": 1}')
    assert not made.started
    made.check_started(b'{"started": true}')
    assert made.started
    for stream in made.streams:
        os.close(stream.write_fd)
    made.close()


def test_the_longest_frame_is_accepted_and_one_byte_more_is_not() -> None:
    ours, theirs = socket.socketpair()
    host = HostChannel(ours, 10)
    theirs.sendall(LENGTH.pack(10) + b"x" * 10)
    assert list(host.read_frames()) == [b"x" * 10]
    theirs.sendall(LENGTH.pack(11))
    with pytest.raises(ForgedMessage, match="a frame of 11 bytes"):
        list(host.read_frames())
    host.close()
    theirs.close()


def test_what_a_dead_process_sent_is_dropped_to_the_last_byte() -> None:
    ours, theirs = socket.socketpair()
    host = HostChannel(ours, 10)
    theirs.setblocking(False)
    sent = 0
    try:
        while True:
            sent += theirs.send(b"x" * 50_000)
    except BlockingIOError:
        assert sent > 2 * guest.CHANNEL_BLOCK
    assert host.has_unread
    host.discard()
    assert not host.has_unread
    host.close()
    theirs.close()


def test_a_frame_that_is_longer_than_the_socket_holds_is_sent_while_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    host, received = HostChannel(ours, 10), []

    def read() -> None:
        other = Channel(theirs.detach())
        received.append(other.receive()[0])
        other.close()

    reader = threading.Timer(0.05, read)
    reader.start()
    host.send("x" * (4 << 20), 20.0)
    reader.join()
    assert len(received[0]) == 4 << 20
    host.close()


def test_the_bound_of_a_frame_grows_with_what_is_kept() -> None:
    assert max_frame_bytes(0) == 1 << 16
    assert max_frame_bytes(1000) == (1 << 16) + 8000


def test_a_cancelled_piece_of_work_kills_what_it_waits_for_and_starts_nothing_more(process: GuestProcess) -> None:
    cancellation = Cancellation()

    def work() -> bool:
        with killed_when_cancelled(process):
            cancellation.cancel()
            return process.was_killed

    assert cancellation.run(work) is True
    with pytest.raises(CancelledError):
        cancellation.run(work)


def test_only_what_is_waited_for_is_killed(process: GuestProcess) -> None:
    cancellation = Cancellation()

    def work() -> None:
        with killed_when_cancelled(process):
            pass

    cancellation.run(work)
    cancellation.cancel()
    assert not process.was_killed
    work()  # of no cancellation
    assert not process.was_killed
