"""Clocks that untrusted code cannot touch: what runs is drained and watched from outside, and killed when it is due."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from rollbook.sandbox.clock import Clock
from rollbook.sandbox.cores import TOGETHER_S, release
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.limits import THREADS, Limits
from rollbook.sandbox.process import Process
from rollbook.sandbox.result import Error, Report, Status
from rollbook.sandbox.stream import Stream

SETUP_S = 30.0
KILL_S = 30.0
LOOK_S = 3600.0
"""Nothing is waited for any longer without a look: the kernel counts milliseconds in few bits."""
FLOOD_BYTES = 64 << 20
CORES = max(1, min(os.cpu_count() or 1, THREADS))


class Watch:
    """A stretch of code under way. Until `begin`, only the deadline for the set-up counts.

    What is killed when it is due is the process; whose CPU time counts is the clock's business. `together`: it began on
    one core with another, and is released from there when it takes long.
    """

    def __init__(
        self,
        process: Process,
        limits: Limits,
        streams: Sequence[Stream],
        setup_s: float = SETUP_S,
        clock: Clock | None = None,
        together: bool = False,
    ) -> None:
        self._process, self._limits, self._streams = process, limits, streams
        self._clock = clock or process
        self.verdict: Status | None = None
        self._due = time.monotonic() + setup_s
        self._began: float | None = None
        self._cpu_before = 0.0
        self._together, self._apart = together, math.inf
        self._poll = select.poll()

    def begin(self) -> None:
        """The clocks start here."""
        self._cpu_before = self._clock.cpu_s()
        self._began = time.monotonic()
        self._due = self._began + self._limits.wall_s
        if self._together:
            self._apart = self._began + TOGETHER_S

    @property
    def seconds(self) -> float:
        """The time since it began."""
        return time.monotonic() - self._began if self._began else 0.0

    @property
    def cpu_seconds(self) -> float:
        """The CPU time since it began."""
        return self.since_begin(self._clock.cpu_s())

    def since_begin(self, cpu_s: float) -> float:
        """What of a process's CPU time was used since it began."""
        return max(0.0, cpu_s - self._cpu_before)

    def wait(self, lines: Mapping[int, Callable[[], bool]]) -> None:
        """Until a line that has something to say says that it is over."""
        pipes = {stream.read: stream for stream in self._streams if stream.open}
        for handle in (*pipes, *lines):
            self._poll.register(handle, select.POLLIN)
        over = False
        while not over:
            for handle, event in self._poll.poll(max(1, min(self._patience(), LOOK_S) * 1000)):
                if handle in lines:
                    over = lines[handle]() or over
                else:
                    pipes[handle].drain()
                if event & select.POLLHUP and (handle in lines or not pipes[handle].open):
                    self.forget(handle)
            self._look()

    def forget(self, handle: int) -> None:
        """A line that has nothing more to say."""
        with suppress(KeyError):
            self._poll.unregister(handle)

    def _patience(self) -> float:
        """How long nothing can be due: on every core CPU time runs no faster than the wall clock."""
        wall = min(self._due, self._apart) - time.monotonic()
        if self._began is None or self.verdict:
            return wall
        return max(0.002, min(wall, (self._limits.seconds - self.cpu_seconds) / CORES))

    def _look(self) -> None:
        now = time.monotonic()
        if now > self._apart:
            self._apart = now + TOGETHER_S if release(self._process.pid) else math.inf
        late = now > self._due
        if self.verdict:
            if late:
                raise SandboxError(f"process {self._process.pid} does not die")
        elif self._began is None:
            if late:
                self.kill("killed")
        elif late or self.cpu_seconds > self._limits.seconds:
            self.kill("timeout")
        elif sum(stream.total for stream in self._streams) > FLOOD_BYTES:
            self.kill("output")

    def kill(self, verdict: Status) -> None:
        """End it, for this reason if there was none before."""
        self.verdict = self.verdict or verdict
        self._due = time.monotonic() + KILL_S
        self._process.kill()


def status_of_death(code: int | None, cpu_s: float, limits: Limits) -> Status:
    """One word for a process that ended without a report that anybody asked for."""
    if code == -signal.SIGKILL:
        return "timeout" if cpu_s >= limits.seconds else "killed"
    if code is None or code < 0:
        return "timeout" if code == -signal.SIGXCPU else "crash"
    return "error" if code else "ok"


def out_of_memory(limits: Limits) -> Report:
    """What is said of a program that the kernel has killed, or a part of it, since there was no memory left."""
    return Report(error=Error("OutOfMemory", f"killed: more than {limits.memory_mb} MB in all"))


def status_of_report(report: Report) -> Status:
    """One word for what code says of itself."""
    if report.error is not None:
        return "memory" if report.memory else "error"
    return "error" if report.exit else "ok"
