"""One guest, seen from the host: its process, channel, payload and output, how it ended, and a run to its end.

Whatever comes over a guest's channel, memory and time of the host stay bounded.

A payload is what a guest is given to read: bytes held by the kernel (a memfd), which are in nobody's memory until the
guest reads them. A zygote passes the payload on and never opens it. Whatever a zygote has once read stays in its memory
until something else is written there, and every later guest begins with a copy of that memory: tests would be found by
the next candidate, and one run's files by another.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from rollbook.core import JSON
from rollbook.sandbox.cgroups import MemoryAccount
from rollbook.sandbox.errors import ForgedMessage, SandboxError
from rollbook.sandbox.inner.channel import LENGTH, Channel, encode_frame, read_descriptors
from rollbook.sandbox.isolation import HostFolder
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.results import GuestReport, Result, RunStatus
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

CHANNEL_BLOCK = 1 << 16
MAX_ESCAPED_BYTES = 8
"""More than the bytes that one character can become in JSON."""
SPARE_BYTES = 1 << 16


def max_frame_bytes(keep_bytes: int) -> int:
    """The longest frame that an honest guest sends whose value is cut at `keep_bytes`."""
    return SPARE_BYTES + MAX_ESCAPED_BYTES * keep_bytes


class HostChannel:
    """Frames from and to a guest. Never waits to receive, and sends by a deadline."""

    def __init__(self, end: socket.socket, most_bytes: int) -> None:
        end.setblocking(False)
        self._socket, self._buffer = end, bytearray()
        self.most_bytes = most_bytes
        self.open = True

    def fileno(self) -> int:
        """Its descriptor."""
        return self._socket.fileno()

    def send(self, value: JSON, timeout_s: float) -> None:
        """One frame; TimeoutError when the guest does not take it, EOFError when it has hung up."""
        frame, end = memoryview(encode_frame(value)), time.monotonic() + timeout_s
        while frame:
            try:
                frame = frame[self._socket.send(frame) :]
            except BlockingIOError:
                self._wait_for_room(end)
            except OSError:
                raise EOFError("the guest has hung up") from None

    def _wait_for_room(self, end: float) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError("the guest does not read")

    def read_frames(self) -> Iterator[bytes]:
        """The whole frames that are there by now; Forged where one says that it is longer than any may be."""
        self._fill()
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > self.most_bytes:
                raise ForgedMessage(f"a frame of {size} bytes")
            if len(self._buffer) < LENGTH.size + size:
                return
            frame = bytes(self._buffer[LENGTH.size : LENGTH.size + size])
            del self._buffer[: LENGTH.size + size]
            yield frame

    def _fill(self) -> None:
        while self.open and len(self._buffer) < LENGTH.size + self.most_bytes:
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
        """The descriptor that comes with the first frame. Only to be asked before untrusted code has run."""
        data, extra, _, _ = self._socket.recvmsg(CHANNEL_BLOCK, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        self._buffer += data
        return read_descriptors(extra)

    @property
    def has_unread(self) -> bool:
        """Whether something lies here already, before anything was asked."""
        self._fill()
        return bool(self._buffer)

    def discard(self) -> None:
        """Drop what a dead process has left here, all of it."""
        self._fill()
        while self._buffer:
            self._buffer.clear()
            self._fill()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def make_payload(code: str, files: Mapping[str, bytes] | None, request: Mapping[str, JSON] | None) -> int:
    """The letter that tells a guest what to do."""
    told = {name: data.hex() for name, data in (files or {}).items()}
    text = json.dumps({**(request or {}), "code": code, "files": told}, ensure_ascii=False)
    return make_memory_file("letter", text.encode(errors="replace"))  # code may hold halves of characters


def make_stdin(stdin: bytes) -> int:
    """What a guest reads as its stdin."""
    return make_memory_file("stdin", stdin) if stdin else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def make_memory_file(name: str, data: bytes) -> int:
    """A descriptor to read these bytes from, which no disk sees."""
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
    """What the zygote says of a guest that is dead: as good as the kernel's word."""

    ended: int
    cpu_s: float
    peak_kb: int


class Guest:
    """Made by `Slot.launch`, which gives it its descriptors; whoever asked for it closes it."""

    def __init__(
        self,
        limits: Limits,
        isolation: tuple[str, ...],
        account: MemoryAccount | None = None,
        folder: HostFolder | None = None,
    ) -> None:
        self.isolation, self._folder = isolation, folder
        self.started = False
        self._account, self._several = account, limits.processes > 1
        self._process: GuestProcess | None = None
        self._clock: CpuClock | None = account.clock if account and self._several else None
        self._grouped = self._clock is not None
        ours, self._theirs = socket.socketpair()
        self.channel = HostChannel(ours, max_frame_bytes(limits.keep_bytes))
        ours, self._zygotes = socket.socketpair()
        self._control = Channel(ours.detach(), SETUP_S)
        self.out = OutputPipe(limits.keep_bytes)
        try:
            self.err = OutputPipe(limits.keep_bytes)
        except OSError:
            self.out.close_both()
            raise

    @property
    def process(self) -> GuestProcess:
        """The first process of its namespace: all others of the guest end with it."""
        assert self._process
        return self._process

    @property
    def clock(self) -> CpuClock:
        """The CPU time of all its processes."""
        return self._clock or self.process

    def cpu_s(self, end: GuestExit) -> float:
        """The same once it is dead: by the group's word where there is one, else by the kernel's last one."""
        counted = self.clock.cpu_s()
        return counted if self._grouped else max(end.cpu_s, counted)

    @property
    def streams(self) -> tuple[OutputPipe, OutputPipe]:
        """Its stdout and stderr."""
        return self.out, self.err

    def send_descriptors(self, send: Callable[[list[int]], None], stdin: int, extra: Sequence[int]) -> None:
        """Give the guest's ends to the zygote, and learn its process from it."""
        theirs = [stdin, self.out.write_fd, self.err.write_fd]
        try:
            send([*theirs, self._theirs.fileno(), *extra, self._zygotes.fileno()])
        finally:
            for handle in theirs:
                os.close(handle)
            self._theirs.close()
            self._zygotes.close()
            if self._account:
                self._account.close_doors()
            if self._folder:
                self._folder.close_trees()
        begun, handles = self._control.receive(1)
        if not handles:
            raise SandboxError(f"no guest could be started: {begun.get('failed')}")
        self._process = GuestProcess(handles[0])
        if self._several and not self._grouped:
            self._clock = ProcessTreeClock(self._process)

    def wait_until_started(self, limits: Limits) -> list[int]:
        """Until the walls are up, by a deadline; gives the descriptor that came with the word, if one did."""
        handles: list[int] = []

        def hear() -> bool:
            handles.extend(self.channel.receive_descriptors())
            for frame in self.channel.read_frames():
                self.check_started(frame)
            return self.started

        watch = Watchdog(self.process, limits, self.streams)
        watch.wait({self.channel.fileno(): hear, self.control: lambda: True})
        if not self.started:
            raise self.make_start_error()
        return handles

    def make_start_error(self) -> SandboxError:
        """Why there are no walls."""
        self.err.drain()
        return SandboxError(f"the walls could not be put up: {self.err.text().strip() or 'no word of it'}")

    def check_started(self, frame: bytes) -> None:
        """The first frame, which says that the walls are up."""
        if frame != _STARTED:
            raise ForgedMessage("it did not say that it has started")
        self.started = True

    @property
    def control(self) -> int:
        """The descriptor that is ready once it has ended."""
        return self._control.fileno()

    def wait_for_exit(self) -> GuestExit:
        """How it ended; waits for it, so it must be on its way."""
        try:
            said, _ = self._control.receive()
        except (OSError, EOFError) as error:
            raise SandboxError(f"the sandbox broke: {error}") from None
        return msgspec.convert(said, GuestExit)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed something of it for want of memory since this was last asked."""
        return self._account is not None and self._account.ran_out_of_memory()

    def renew_memory(self, limits: Limits, own_mb: float) -> None:
        """What it holds by now does not count against the limit of the turn to come."""
        if self._account:
            self._account.renew_limit(limits, own_mb)

    def close(self) -> None:
        """End it and everything in it, and let go."""
        if self._process:
            self._process.kill()
            self._process.has_ended(GUEST_KILL_S)
            self._process.close()
        for held in (self.out, self.err, self.channel, self._control):
            held.close()
        if self._account:
            self._account.close()
        if self._folder:
            self._folder.close()


_report_decoder = msgspec.json.Decoder(GuestReport)


class GuestRun:
    """A program under way in a guest of the role `run`."""

    def __init__(self, guest: Guest, limits: Limits, shared_core: bool = False) -> None:
        self._guest, self._limits = guest, limits
        self._watch = Watchdog(guest.process, limits, guest.streams, clock=guest.clock, shared_core=shared_core)
        self._report = GuestReport()

    def wait_for_result(self) -> Result:
        """Wait for the end and describe it."""
        guest = self._guest
        self._watch.wait({guest.channel.fileno(): self._read_channel, guest.control: lambda: True})
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
        except (ForgedMessage, msgspec.DecodeError):  # it wrote nonsense where it should not have
            channel.open = False
        if not channel.open:
            self._watch.unregister(channel.fileno())
        return False

    def _handle_frame(self, frame: bytes) -> None:
        if self._guest.started:
            self._report = _report_decoder.decode(frame)
        else:
            self._guest.check_started(frame)
            self._watch.begin()

    def _describe(self) -> Result:
        guest, watch, end = self._guest, self._watch, self._guest.wait_for_exit()
        cpu = watch.cpu_since_begin(guest.cpu_s(end))
        value, cut = clip_value(self._report.value, self._limits)
        for stream in guest.streams:
            stream.drain()
        status = watch.kill_status or self._find_status(end.ended, cpu)
        return Result(
            status=status,
            stdout=guest.out.text(),
            stderr=guest.err.text(),
            value=value,
            error=self._report.error,
            exit=end.ended if end.ended >= 0 else None,
            seconds=watch.seconds,
            cpu_seconds=cpu,
            peak_mb=end.peak_kb / 1024,
            truncated=cut or guest.out.truncated or guest.err.truncated,
            stdout_cut=guest.out.truncated,
            isolation=guest.isolation,
        )

    def _find_status(self, code: int, cpu_s: float) -> RunStatus:
        if (code == -signal.SIGKILL or self._limits.processes > 1) and self._guest.ran_out_of_memory():
            self._report = out_of_memory(self._limits)
            return "memory"
        if code >= 0 and self._report.error is not None:
            return status_of_report(self._report)
        return status_of_death(code, cpu_s, self._limits)


def clip_value(value: str | None, limits: Limits) -> tuple[str | None, bool]:
    """The value as far as it is kept, and whether there was more."""
    if value is None or len(value) <= limits.keep_bytes:
        return value, False
    return value[: limits.keep_bytes], True
