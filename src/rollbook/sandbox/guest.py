"""One guest, seen from the host: its process, channel, payload and output, how it ended, and a run to its end.

Whatever a guest sends on its channel, it costs the host a bounded amount of memory and time.

A payload holds what a guest reads: bytes in a memfd, which are in no process's memory until the guest reads them. A
zygote passes the payload on and never opens it. Whatever a zygote has once read stays in its memory until it is
overwritten, and every later guest starts with a copy of that memory: the next candidate could find tests in it, or
files of another run.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from rollbook.core import JSON, JSON_ERRORS
from rollbook.errors import SandboxError
from rollbook.sandbox.cgroups import MemoryAccount
from rollbook.sandbox.inner.channel import LENGTH, Channel, encode_frame, read_descriptors
from rollbook.sandbox.isolation import HostFolder
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.results import GuestReport, ProgramError, Result, RunStatus, decode_guest_report
from rollbook.sandbox.supervision import (
    SETUP_S,
    CpuClock,
    GuestProcess,
    OutputPipe,
    ProcessTreeClock,
    Watchdog,
    out_of_memory,
    status_of_death,
    status_of_report,
)

T = TypeVar("T")
CHANNEL_BLOCK = 1 << 16
MAX_ESCAPED_BYTES = 8
"""An upper bound of the bytes that one character can become in JSON."""
SPARE_BYTES = 1 << 16


def max_frame_bytes(keep_bytes: int) -> int:
    """Return the longest frame that an honest guest sends if its value is cut at `keep_bytes`."""
    return SPARE_BYTES + MAX_ESCAPED_BYTES * keep_bytes


class ForgedMessage(Exception):
    """A guest sent what its role never sends: its code has found the channel. Does not leave this package."""


class HostChannel:
    """Sends frames to a guest with a deadline, and receives frames without ever waiting."""

    def __init__(self, end: socket.socket, max_bytes: int) -> None:
        end.setblocking(False)
        self._socket, self._buffer = end, bytearray()
        self.max_bytes = max_bytes
        self.open = True

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._socket.fileno()

    def send(self, value: JSON, timeout_s: float) -> None:
        """Send one frame; TimeoutError when the guest does not read it, EOFError when it has closed the channel."""
        frame, end = memoryview(encode_frame(value)), time.monotonic() + timeout_s
        while frame:
            try:
                frame = frame[self._socket.send(frame) :]
            except BlockingIOError:
                self._wait_for_room(end)
            except OSError:
                raise EOFError("the guest closed its channel") from None

    def _wait_for_room(self, end: float) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError("the guest does not read")

    def read_frames(self) -> Iterator[bytes]:
        """Yield the complete frames that have arrived; ForgedMessage when one announces more than `max_bytes`."""
        self._fill()
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > self.max_bytes:
                raise ForgedMessage(f"a frame of {size} bytes")
            if len(self._buffer) < LENGTH.size + size:
                return
            frame = bytes(self._buffer[LENGTH.size : LENGTH.size + size])
            del self._buffer[: LENGTH.size + size]
            yield frame

    def _fill(self) -> None:
        while self.open and len(self._buffer) < LENGTH.size + self.max_bytes:
            try:
                data = self._socket.recv(CHANNEL_BLOCK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.open = bool(data)
            self._buffer += data
            if len(data) < CHANNEL_BLOCK:
                return

    def receive_descriptors(self) -> list[int]:
        """Receive the descriptor that comes with the first frame. Only valid before untrusted code has run."""
        data, extra, _, _ = self._socket.recvmsg(CHANNEL_BLOCK, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        self._buffer += data
        return read_descriptors(extra)

    @property
    def has_unread(self) -> bool:
        """Whether data is waiting that was sent before anything was requested."""
        self._fill()
        return bool(self._buffer)

    def discard(self) -> None:
        """Drop everything that a dead process has sent."""
        self._fill()
        while self._buffer:
            self._buffer.clear()
            self._fill()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def make_payload(code: str, files: Mapping[str, bytes] | None, request: Mapping[str, JSON] | None) -> int:
    """Make the payload of a guest: its code, files and request."""
    encoded = {name: data.hex() for name, data in (files or {}).items()}
    text = json.dumps({**(request or {}), "code": code, "files": encoded}, ensure_ascii=False)
    return make_memory_file("payload", text.encode(errors="replace"))  # code may hold halves of characters


def make_stdin(stdin: bytes) -> int:
    """Make the stdin of a guest."""
    return make_memory_file("stdin", stdin) if stdin else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def make_memory_file(name: str, data: bytes) -> int:
    """Return a descriptor from which these bytes can be read; they are never on a disk."""
    handle = os.memfd_create(name)
    try:
        while data:
            data = data[os.write(handle, data) :]
    except BaseException:
        os.close(handle)
        raise
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


GUEST_KILL_S = 10.0
_STARTED = b'{"started": true}'


class GuestExit(msgspec.Struct, frozen=True):
    """How a guest ended, as reported by the zygote: as reliable as the kernel."""

    ended: int
    cpu_s: float
    peak_kb: int


class Guest:
    """A guest made by `GuestLauncher.launch`, which sends it its descriptors; the caller closes it."""

    def __init__(
        self,
        limits: Limits,
        isolation: tuple[str, ...],
        account: MemoryAccount | None = None,
        folder: HostFolder | None = None,
    ) -> None:
        self.isolation, self._folder = isolation, folder
        self.started = False
        self._account, self._has_processes = account, limits.processes > 1
        # Below bwrap's first process, code with several processes can kill its own first one.
        self._code_can_kill = self._has_processes and "bubblewrap" in isolation
        self._process: GuestProcess | None = None
        self._clock: CpuClock | None = account.clock if account and self._has_processes else None
        self._grouped = self._clock is not None
        ours, self._guest_end = socket.socketpair()
        self.channel = HostChannel(ours, max_frame_bytes(limits.keep_bytes))
        ours, self._zygote_end = socket.socketpair()
        self._control = Channel(ours.detach(), SETUP_S)
        self.out = OutputPipe(limits.keep_bytes)
        try:
            self.err = OutputPipe(limits.keep_bytes)
        except OSError:
            self.out.close_both()
            raise

    @property
    def process(self) -> GuestProcess:
        """The first process of its namespace: all other processes of the guest end with it."""
        assert self._process
        return self._process

    @property
    def clock(self) -> CpuClock:
        """The CPU time of all its processes."""
        return self._clock or self.process

    def cpu_s(self, end: GuestExit) -> float:
        """Return the CPU time of a dead guest: its control group's count if there is one, else the kernel's last."""
        cpu_s = self.clock.cpu_s()
        return cpu_s if self._grouped else max(end.cpu_s, cpu_s)

    @property
    def streams(self) -> tuple[OutputPipe, OutputPipe]:
        """Its stdout and stderr."""
        return self.out, self.err

    def send_descriptors(self, send: Callable[[list[int]], None], stdin: int, extra: Sequence[int]) -> None:
        """Send the guest's descriptors to the zygote, and receive the guest's pidfd from it."""
        theirs = [stdin, self.out.write_fd, self.err.write_fd]
        try:
            send([*theirs, self._guest_end.fileno(), *extra, self._zygote_end.fileno()])
        finally:
            for handle in theirs:
                os.close(handle)
            self._guest_end.close()
            self._zygote_end.close()
            if self._account:
                self._account.close_procs_files()
            if self._folder:
                self._folder.close_trees()
        begun, handles = self._control.receive(1)
        if not handles:
            raise SandboxError(f"no guest could be started: {begun.get('failed')}")
        self._process = GuestProcess(handles[0])
        if self._has_processes and not self._grouped:
            self._clock = ProcessTreeClock(self._process)

    def wait_until_started(self, limits: Limits) -> list[int]:
        """Wait, with a deadline, until isolation is set up; return the descriptors that came with that message."""
        handles: list[int] = []

        def receive() -> bool:
            handles.extend(self.channel.receive_descriptors())
            for frame in self.channel.read_frames():
                self.check_started(frame)
            return self.started

        watch = Watchdog(self.process, limits, self.streams)
        watch.wait({self.channel.fileno(): receive, self.control: lambda: True})
        if not self.started:
            raise self.make_start_error()
        return handles

    def make_start_error(self) -> SandboxError:
        """Return an error with the reason why isolation could not be set up."""
        self.err.drain()
        return SandboxError(f"isolation could not be set up: {self.err.text().strip() or 'no message'}")

    def check_started(self, frame: bytes) -> None:
        """Check the first frame, which reports that isolation is set up."""
        if frame != _STARTED:
            raise ForgedMessage("it did not report its start")
        self.started = True

    @property
    def control(self) -> int:
        """The descriptor that becomes ready when the guest has ended."""
        return self._control.fileno()

    def wait_for_exit(self) -> GuestExit:
        """Wait until the guest has ended, and return how; it must be ending already."""
        try:
            message, _ = self._control.receive()
        except (OSError, EOFError) as error:
            raise SandboxError(f"the sandbox broke: {error}") from None
        return msgspec.convert(message, GuestExit)

    def can_kill(self, process: GuestProcess) -> bool:
        """Return whether we or the code itself can have killed one of its processes. Code cannot kill the first process
        of its namespace; the filter denies it where its process is not the first one, or has no namespace."""
        return process.was_killed or self._code_can_kill

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed one of its processes since the last call because the guest's memory was used
        up; SandboxError if the machine's memory was."""
        return self._account is not None and self._account.ran_out_of_memory()

    def renew_memory(self, limits: Limits, own_mb: float) -> None:
        """Renew the memory limit for the next turn: what the guest uses now does not count against it."""
        if self._account:
            self._account.renew_limit(limits, own_mb)

    def add_output(self, result: Result, value: str | None, limits: Limits) -> Result:
        """Return the result with stdout, stderr and the value, each cut to what is kept."""
        for stream in self.streams:
            stream.drain()
        cut = value is not None and len(value) > limits.keep_bytes
        return msgspec.structs.replace(
            result,
            stdout=self.out.text(),
            stderr=self.err.text(),
            value=value[: limits.keep_bytes] if value is not None else None,
            truncated=cut or self.out.truncated or self.err.truncated,
            stdout_cut=self.out.truncated,
            isolation=self.isolation,
        )

    def close(self) -> None:
        """Kill the guest with all its processes, and close its descriptors."""
        if self._process:
            self._process.kill()
            self._process.has_ended(GUEST_KILL_S)
            self._process.close()
        for resource in (self.out, self.err, self.channel, self._control):
            resource.close()
        if self._account:
            self._account.close()
        if self._folder:
            self._folder.close()


_thread = threading.local()


class Cancellation:
    """Kills the guest that a piece of work waits for when the work is cancelled, which happens in another thread."""

    def __init__(self) -> None:
        self._lock, self._cancelled = threading.Lock(), False
        self._process: GuestProcess | None = None

    def run(self, work: Callable[[], T]) -> T:
        """Run the work in this thread."""
        _thread.cancellation = self
        try:
            return work()
        finally:
            _thread.cancellation = None

    def watch(self, process: GuestProcess | None) -> None:
        """Note what to kill, as long as its pidfd is open; CancelledError if the work is cancelled already."""
        with self._lock:
            if process and self._cancelled:
                raise CancelledError
            self._process = process

    def cancel(self) -> None:
        """Kill what the work waits for, and let it start nothing more."""
        with self._lock:
            self._cancelled = True
            if self._process:
                self._process.kill()


@contextmanager
def killed_when_cancelled(process: GuestProcess) -> Iterator[None]:
    """Let a cancellation of the work of this thread kill a process of a guest."""
    cancellation: Cancellation | None = getattr(_thread, "cancellation", None)
    if cancellation is None:
        yield
        return
    cancellation.watch(process)
    try:
        yield
    finally:
        cancellation.watch(None)


class GuestRun:
    """A program running in a guest of the role `run`."""

    def __init__(self, guest: Guest, limits: Limits, shared_core: bool = False) -> None:
        self._guest, self._limits = guest, limits
        self._watchdog = Watchdog(guest.process, limits, guest.streams, clock=guest.clock, shared_core=shared_core)
        self._report, self._has_report = GuestReport(), False

    def wait_for_result(self) -> Result:
        """Wait for the end and describe it."""
        guest = self._guest
        with killed_when_cancelled(guest.process):
            self._watchdog.wait({guest.channel.fileno(): self._read_channel, guest.control: lambda: True})
        if guest.channel.open:
            self._read_channel()
        if not guest.started:
            raise guest.make_start_error()
        return self._describe()

    def _read_channel(self) -> bool:
        channel = self._guest.channel
        try:
            for frame in channel.read_frames():
                self._handle_frame(frame)
                if not channel.open:
                    break
        except (ForgedMessage, *JSON_ERRORS):  # it wrote nonsense where it should not have
            channel.open = False
        if not channel.open:
            self._watchdog.unregister(channel.fileno())
        return False

    def _handle_frame(self, frame: bytes) -> None:
        if not self._guest.started:
            self._guest.check_started(frame)
            self._watchdog.begin()
        elif self._has_report:
            self._end_forger()
        else:
            self._report, self._has_report = decode_guest_report(frame), True

    def _end_forger(self) -> None:
        """End a run that reports twice: at least one report is the code's own, and reading many would cost us more than
        it costs the code to send them."""
        self._guest.channel.open = False
        self._watchdog.kill("killed")
        error = ProgramError("Killed", "the code wrote on the sandbox's channel: a second report")
        self._report = GuestReport(error=error)

    def _describe(self) -> Result:
        guest, watchdog, end = self._guest, self._watchdog, self._guest.wait_for_exit()
        cpu, value = watchdog.cpu_since_begin(guest.cpu_s(end)), self._report.value
        status = watchdog.kill_status or self._find_status(end.ended, cpu)
        result = Result(
            status=status,
            error=watchdog.kill_error or self._report.error,
            exit=end.ended if end.ended >= 0 else None,
            seconds=watchdog.seconds,
            cpu_seconds=cpu,
            peak_mb=end.peak_kb / 1024,
        )
        return guest.add_output(result, value, self._limits)

    def _find_status(self, code: int, cpu_s: float) -> RunStatus:
        if (code == -signal.SIGKILL or self._limits.processes > 1) and self._guest.ran_out_of_memory():
            self._report = out_of_memory(self._limits)
            return "memory"
        if code >= 0 and self._report.error is not None:
            return status_of_report(self._report)
        return status_of_death(code, cpu_s, self._limits, can_kill=self._guest.can_kill(self._guest.process))
