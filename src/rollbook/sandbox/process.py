"""A process of a sandbox, held by its descriptor, so that no other can ever be meant."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rollbook.processes.tree import members

ROUNDS = 16


class Size(NamedTuple):
    """The most memory that a process has ever held at once, and what it holds by now that is no file's."""

    peak_mb: float
    own_mb: float


class Process:
    """Can be stopped, continued, killed and asked for its CPU time from outside, whatever it does."""

    def __init__(self, pidfd: int) -> None:
        self.pidfd = pidfd
        self.pid = pid_of(pidfd)
        self._cpu_s = 0.0

    def cpu_s(self) -> float:
        """The CPU time of all its threads; the last that was known once it is gone."""
        self._cpu_s = cpu_clock(self.pid) or self._cpu_s
        return self._cpu_s

    def peak_mb(self) -> float:
        """The most memory it has ever held at once; 0 when it is gone or the kernel does not tell."""
        return self.size().peak_mb

    def size(self) -> Size:
        """The memory it has."""
        try:
            with open(f"/proc/{self.pid}/status", "rb", buffering=0) as file:
                text = file.read(8192)
        except OSError:
            return Size(0.0, 0.0)
        return Size(_megabytes(text, b"VmHWM:"), _megabytes(text, b"RssAnon:") + _megabytes(text, b"RssShmem:"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """End it."""
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        """Let none of its threads run until it is continued."""
        self.signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let it run."""
        self.signal(signal.SIGCONT)

    def gone(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, with all its threads."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def exit_code(self) -> int | None:
        """How it ended, minus the signal if one ended it; None when it has been reaped or the kernel does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        if fields[0] != "Z" or pid_of(self.pidfd) != self.pid:
            return None
        return os.waitstatus_to_exitcode(int(fields[49]))

    def kill_others(self) -> bool:
        """End all that it has started, while it is stopped; False when there is no end of them."""
        for _ in range(ROUNDS):
            others = [p for p in members(self.pid) if p.pid != self.pid and not is_dead(p.pid)]
            if not others:
                return True
            for process in others:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
        return False

    def close(self) -> None:
        """Let go of it."""
        os.close(self.pidfd)


def _megabytes(status: bytes, name: bytes) -> float:
    """A line of what /proc says of a process; 0 when it does not."""
    _, _, rest = status.partition(name)
    return int(rest.split(maxsplit=1)[0]) / 1024 if rest else 0.0


def cpu_clock(pid: int) -> float:
    """The CPU time of all threads of a process, to the nanosecond; 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # how the kernel names the clock of another process
    except OSError:
        return 0.0


def pid_of(pidfd: int) -> int:
    """The process's number, or -1 once it has been reaped."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb", buffering=0) as file:
        _, found, rest = file.read(4096).partition(b"Pid:")
    if not found:
        raise OSError("the kernel does not tell a pidfd's pid")
    return int(rest.split(maxsplit=1)[0])


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or is a zombie that nobody has reaped."""
    return _state(pid) in "ZX"


def is_asleep(pid: int) -> bool:
    """Whether a process's first thread waits for something else than a core."""
    return _state(pid) == "S"


def _state(pid: int) -> str:
    """The kernel's letter for what a process does; none when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
