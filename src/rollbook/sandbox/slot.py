"""One zygote, seen from the host: starts it, hands it runs one at a time, and keeps the clocks that it cannot touch."""

from __future__ import annotations

import array
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.errors import RollbookError
from rollbook.processes.child import Child
from rollbook.sandbox.limits import THREADS, Limits
from rollbook.sandbox.result import Report, Result, Status

HERE = Path(__file__).parent
START_S = 60.0
SETUP_S = 30.0
FLOOD_BYTES = 64 << 20
REPORT_BYTES = 1 << 20
BLOCK = 1 << 16
_LENGTH = struct.Struct("<I")
_report = msgspec.json.Decoder(Report)


class SandboxError(RollbookError):
    """The sandbox itself failed, or cannot give what was asked: never a result, never a reward."""


class Stream:
    """A pipe being drained: its head is kept, the rest is counted."""

    def __init__(self, keep: int) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self._keep, self._held = keep, bytearray()
        self.total = 0
        self.open = True

    def drain(self) -> None:
        """Take what is there."""
        while self.open:
            try:
                data = os.read(self.read, BLOCK)
            except BlockingIOError:
                return
            self.open = bool(data)
            self.total += len(data)
            if len(self._held) < self._keep:
                self._held += data[: self._keep - len(self._held)]

    @property
    def truncated(self) -> bool:
        """Whether more came than is kept."""
        return self.total > self._keep

    def data(self) -> bytes:
        """What is kept."""
        return bytes(self._held)

    def text(self) -> str:
        """The same as text; bytes that are none are shown as such."""
        return self._held.decode(errors="replace")

    def close(self) -> None:
        """Let go."""
        os.close(self.read)


class Slot:
    """A zygote and its socket. Synchronous: whoever calls it has a thread to spare."""

    def __init__(self, config: dict[str, JSON], python: str, log: Path | None = None) -> None:
        self._stage = tempfile.mkdtemp(prefix="rollbook-root-")
        ours, theirs = socket.socketpair()
        self._socket = ours
        boot = (
            f"import sys; sys.path.insert(0, {str(HERE)!r}); from inner import server; server.main({theirs.fileno()})"
        )
        self._child = Child([python, "-I", "-S", "-c", boot], env={}, pass_fds=(theirs.fileno(),), log=log)
        theirs.close()
        ours.settimeout(START_S)
        try:
            self._send({**config, "here": str(HERE), "stage": self._stage})
            reply, _ = self._receive()
        except (OSError, EOFError) as error:
            tail = self._child.log_tail(3)
            self.close()
            raise SandboxError(f"the sandbox did not come up: {tail or error}") from None
        self.isolation = tuple(str(layer) for layer in reply["ready"])

    def _send(self, value: Mapping[str, JSON], handles: list[int] | None = None) -> None:
        body = encode(value)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))] if handles else []
        self._socket.sendmsg([_LENGTH.pack(len(body))], rights)
        self._socket.sendall(body)

    def _receive(self) -> tuple[dict[str, JSON], list[int]]:
        head, extra, _, _ = self._socket.recvmsg(_LENGTH.size, socket.CMSG_SPACE(4))
        if len(head) < _LENGTH.size:
            raise EOFError("the zygote is gone")
        handles = array.array("i")
        for _, _, data in extra:
            handles.frombytes(data)
        body = bytearray()
        (size,) = _LENGTH.unpack(head)
        while len(body) < size:
            block = self._socket.recv(size - len(body))
            if not block:
                raise EOFError("the zygote is gone")
            body += block
        return decode(bytes(body)), list(handles)

    def run(self, code: str, stdin: bytes, files: Mapping[str, bytes], limits: Limits) -> Result:
        """One fresh run; SandboxError when the walls could not be put up or the zygote died."""
        streams = [Stream(limits.output_kb << 10), Stream(limits.output_kb << 10), Stream(REPORT_BYTES), Stream(1)]
        try:
            return self._run(code, stdin, files, limits, streams)
        except (OSError, EOFError) as error:
            raise SandboxError(f"the sandbox broke: {error}; {self._child.log_tail(3)}") from None
        finally:
            for stream in streams:
                stream.close()

    def _run(
        self, code: str, stdin: bytes, files: Mapping[str, bytes], limits: Limits, streams: list[Stream]
    ) -> Result:
        given = os.memfd_create("stdin")
        os.write(given, stdin)
        os.lseek(given, 0, os.SEEK_SET)
        handles = [given, *(stream.write for stream in streams)]
        request = {"code": code, "files": {n: d.hex() for n, d in files.items()}, "limits": limits.wire()}
        try:
            self._send(request, handles)
        finally:
            for handle in handles:
                os.close(handle)
        _, (pidfd,) = self._receive()
        try:
            return Watch(self._socket, self._receive, pidfd, limits, streams, self.isolation).result()
        finally:
            os.close(pidfd)

    def close(self) -> None:
        """End the zygote with everything in it."""
        self._child.kill_now()
        self._socket.close()
        shutil.rmtree(self._stage, ignore_errors=True)


class Watch:
    """One run under way: drains its pipes, watches its clocks, kills it when it is due, and says what became of it."""

    def __init__(
        self,
        channel: socket.socket,
        receive: Callable[[], tuple[dict[str, JSON], list[int]]],
        pidfd: int,
        limits: Limits,
        streams: list[Stream],
        isolation: tuple[str, ...],
    ) -> None:
        self._channel, self._receive, self._pidfd = channel, receive, pidfd
        self._limits, self._isolation = limits, isolation
        self._streams = streams
        self._out, self._err, self._said, self._start = streams
        self._clock_id = cpu_clock(pidfd)
        self._verdict: Status | None = None
        self._began = time.monotonic()
        self._started: float | None = None
        self._cpu_before = 0.0

    def result(self) -> Result:
        """Wait for the end and describe it."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        for stream in self._streams:
            poll.register(stream.read, select.POLLIN)
        ended = False
        while not ended:
            events = poll.poll(max(1, self._patience() * 1000))
            ready = {handle for handle, _ in events}
            for stream in self._streams:
                if stream.read in ready:
                    stream.drain()
                    if not stream.open:
                        poll.unregister(stream.read)
            self._look()
            ended = self._channel.fileno() in ready
        end, _ = self._receive()
        for stream in self._streams:
            stream.drain()
        return self._describe(end)

    def _patience(self) -> float:
        """How long nothing can be due: a single thread cannot burn CPU faster than the wall clock runs."""
        now = time.monotonic()
        if self._started is None:
            return max(0.0, self._began + SETUP_S - now)
        left = self._limits.seconds - self._cpu()
        wall = self._started + self._limits.wall_s - now
        return max(0.002, min(wall, left / max(1, min(os.cpu_count() or 1, THREADS))))

    def _cpu(self) -> float:
        try:
            return time.clock_gettime(self._clock_id) - self._cpu_before
        except OSError:
            return 0.0  # it is gone: its end is on the way

    def _look(self) -> None:
        now = time.monotonic()
        if self._started is None:
            if self._start.total:
                self._started = now
                self._cpu_before = self._cpu()
            elif now - self._began > SETUP_S:
                self._kill("killed")
        elif now - self._started > self._limits.wall_s or self._cpu() > self._limits.seconds:
            self._kill("timeout")
        if self._out.total + self._err.total > FLOOD_BYTES or self._said.total > FLOOD_BYTES:
            self._kill("output")

    def _kill(self, verdict: Status) -> None:
        self._verdict = self._verdict or verdict
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _describe(self, end: dict[str, JSON]) -> Result:
        if not self._start.total:
            raise SandboxError(f"the walls could not be put up: {self._err.text().strip() or end}")
        report = self._report()
        cpu = max(0.0, float(end["cpu_s"]) - self._cpu_before)
        return Result(
            status=self._verdict or status_of(int(end["code"]), cpu, report, self._limits),
            stdout=self._out.text(),
            stderr=self._err.text(),
            value=report.value,
            error=report.error,
            seconds=time.monotonic() - (self._started or self._began),
            cpu_seconds=cpu,
            peak_mb=float(end["peak_kb"]) / 1024,
            truncated=self._out.truncated or self._err.truncated,
            isolation=self._isolation,
        )

    def _report(self) -> Report:
        try:
            return _report.decode(self._said.data())
        except msgspec.DecodeError:
            return Report()  # it left without a word, or wrote nonsense where it should not have


def status_of(code: int, cpu: float, report: Report, limits: Limits) -> Status:
    """One word for how a program ended that nobody stopped."""
    if code == -signal.SIGKILL:
        return "timeout" if cpu >= limits.seconds else "killed"
    if code < 0:
        return "timeout" if -code == signal.SIGXCPU else "crash"
    if report.error is not None:
        return "memory" if report.error.type == "MemoryError" else "error"
    return "error" if code else "ok"


def cpu_clock(pidfd: int) -> int:
    """The clock of a process's CPU time, found through its descriptor, so that no other process can be meant."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return (~int(line.split()[1]) << 3) | 2
    raise OSError("the kernel does not tell a pidfd's pid")
