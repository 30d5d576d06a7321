"""Supervise a guest from outside: processes held by pidfd, CPU clocks, cores, output pipes, deadlines.

Untrusted code cannot change these clocks: its output is read and its time measured from outside, and it is killed when
its time is up. A process is identified by its pidfd, so that no other process can be meant. CPU time of several
processes is summed from /proc where no control group counts it.

Two processes that take turns (two guests, or a guest and the thread that waits for it) share a core at first: each
waits while the other works, and on two cores every message wakes up a core that has fallen asleep, which costs more
than the message itself. A process that is still busy after a moment may use every core.
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

from rollbook.errors import SandboxError
from rollbook.processes import find_members
from rollbook.sandbox.limits import MAX_THREADS, Limits
from rollbook.sandbox.results import GuestReport, ProgramError, RunStatus

KILL_ROUNDS = 16
PF_EXITING = 4
"""The flag of a thread that has begun to exit, in /proc/PID/stat."""
PENDING_KILL = 1 << signal.SIGKILL - 1
"""The bit of a SIGKILL among the pending signals there: the kernel sets it for every thread of a process."""


class MemorySize(NamedTuple):
    """The most memory that a process has ever used at once, and what it uses now apart from files."""

    peak_mb: float
    own_mb: float


class GuestProcess:
    """A process that can be stopped, continued, killed and measured from outside, whatever it does."""

    def __init__(self, pidfd: int) -> None:
        self.pidfd = pidfd
        self.pid = read_pid(pidfd)
        self.was_killed = False
        """Whether we killed it, before anything else had ended it."""
        self._cpu_s = 0.0

    def cpu_s(self) -> float:
        """Return the CPU time of all its threads; once it is gone, the last known value."""
        self._cpu_s = read_cpu_s(self.pid) or self._cpu_s
        return self._cpu_s

    def peak_mb(self) -> float:
        """Return the most memory it has ever used at once; 0 when it is gone or the kernel does not report it."""
        return self.read_memory().peak_mb

    def read_memory(self) -> MemorySize:
        """Return the memory it uses."""
        try:
            with open(f"/proc/{self.pid}/status", "rb", buffering=0) as file:
                text = file.read(8192)
        except OSError:
            return MemorySize(0.0, 0.0)
        return MemorySize(
            _read_megabytes(text, b"VmHWM:"), _read_megabytes(text, b"RssAnon:") + _read_megabytes(text, b"RssShmem:")
        )

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still exists."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill it."""
        self.was_killed = self.was_killed or not is_exiting(self.pid)
        self.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """Stop all its threads until it is resumed."""
        self.send_signal(signal.SIGSTOP)

    def wait_until_stopped(self) -> None:
        """Wait until it has stopped, after `stop`, or is gone."""
        deadline = time.monotonic() + MAX_DYING_S
        while _read_state(self.pid) not in ("T", "Z", "X", ""):
            if time.monotonic() > deadline:
                raise SandboxError(f"process {self.pid} does not stop")
            time.sleep(0)

    def resume(self) -> None:
        """Let it run."""
        self.send_signal(signal.SIGCONT)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Return whether it has ended, with all its threads."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def exit_code(self) -> int | None:
        """Return its exit code, or minus the signal that ended it; None when it is reaped or the kernel hides it."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        if fields[0] != "Z" or read_pid(self.pidfd) != self.pid:
            return None
        return os.waitstatus_to_exitcode(int(fields[49]))

    def kill_others(self) -> bool:
        """Kill all processes that it has started, while it is stopped; return False when new ones keep appearing."""
        for _ in range(KILL_ROUNDS):
            others = [p for p in find_members(self.pid) if p.pid != self.pid and not is_dead(p.pid)]
            if not others:
                return True
            for process in others:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
        return False

    def close(self) -> None:
        """Close its pidfd."""
        os.close(self.pidfd)


def _read_megabytes(status: bytes, name: bytes) -> float:
    """Return one field of /proc/PID/status; 0 when it is missing."""
    _, _, rest = status.partition(name)
    return int(rest.split(maxsplit=1)[0]) / 1024 if rest else 0.0


def read_cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process, to the nanosecond; 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's id of another process's CPU clock
    except OSError:
        return 0.0


def read_pid(pidfd: int) -> int:
    """Return the pid, or -1 once the process has been reaped."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb", buffering=0) as file:
        _, label, rest = file.read(4096).partition(b"Pid:")
    if not label:
        raise OSError("the kernel does not report the pid of a pidfd")
    return int(rest.split(maxsplit=1)[0])


def is_dead(pid: int) -> bool:
    """Return whether a process is gone, or is a zombie that was not reaped."""
    return _read_state(pid) in "ZX"


def is_exiting(pid: int) -> bool:
    """Return whether a process has begun to exit, or has been sent a SIGKILL: this is so before the kernel closes its
    descriptors. Code can end the first thread alone, so the others are looked at too."""
    if not _is_thread_exiting(f"/proc/{pid}/stat"):
        return False
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(_is_thread_exiting(f"/proc/{pid}/task/{thread}/stat") for thread in threads)


def _is_thread_exiting(path: str) -> bool:
    fields = _read_file(path).rpartition(b")")[2].split()
    return not fields or bool(int(fields[6]) & PF_EXITING or int(fields[28]) & PENDING_KILL)


def is_asleep(pid: int) -> bool:
    """Return whether a process's first thread waits for something else than a core."""
    return _read_state(pid) == "S"


def _read_state(pid: int) -> str:
    """Return the kernel's letter for the state of a process; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


TICKS_PER_S = os.sysconf("SC_CLK_TCK")
HAS_CHILD_LISTS = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether this kernel keeps lists of children; without them all processes have to be searched."""


class CpuClock(Protocol):
    """Measures CPU time."""

    def cpu_s(self) -> float:
        """Return the CPU time so far; never less than before."""


class ProcessTreeClock:
    """Measures a process and all that it has started. The first process of the namespace adopts orphans, so no living
    process is missed; dead ones count if they were waited for, or were seen by an earlier measurement."""

    def __init__(self, process: GuestProcess) -> None:
        self._root = find_namespace_init(process.pid)
        self._last_cpu_s = 0.0

    def cpu_s(self) -> float:
        """Return the CPU time of all of them together, as far as it can be seen."""
        self._last_cpu_s = max(self._last_cpu_s, sum(map(read_total_cpu_s, list_descendants(self._root))))
        return self._last_cpu_s


def find_namespace_init(pid: int) -> int:
    """Return the process that adopts orphans: the process itself, or the program that started it in a namespace."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
        if fields["NSpid"].split()[-1] != "1":
            return int(fields["PPid"])
    return pid


def list_descendants(root: int) -> list[int]:
    """Return a process and its descendants."""
    if not HAS_CHILD_LISTS:
        return [process.pid for process in find_members(root)]
    pids = [root]
    for pid in pids:
        pids += list_children(pid)
    return pids


def count_processes(pid: int) -> int:
    """Return how many living processes a guest has, with its first one and orphans, without a program around it."""
    root = find_namespace_init(pid)
    return sum(not is_dead(member) for member in list_descendants(root)) - (root != pid)


def list_children(pid: int) -> list[int]:
    """Return the children of all threads of a process; none when it is gone."""
    if not HAS_CHILD_LISTS:
        return [process.pid for process in find_members(pid) if process.parent == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in _read_file(f"/proc/{pid}/task/{thread}/children").split()]


def read_total_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and of the children that it has waited for."""
    fields = _read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields:
        return 0.0
    user, system, child_user, child_system = (int(field) / TICKS_PER_S for field in fields[11:15])
    return (read_cpu_s(pid) or user + system) + child_user + child_system


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16)
    except OSError:
        return b""


TOGETHER_S = 0.1
MAX_WALKS = 16
_current_core = getattr(ctypes.CDLL(None), "sched_getcpu", None)
_core_numbers: Iterator[int] = count(random.randrange(1 << 16))  # other processes on this machine start elsewhere


def next_core() -> int | None:
    """Return one of the cores that we may use, each in turn; None where cores cannot be chosen."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[next(_core_numbers) % len(allowed)]


def move_to_this_core(pid: int) -> None:
    """Move a process to the core of this thread, which is about to wait for it."""
    if _current_core:
        with suppress(OSError):  # it is gone, or we may not use this core any more
            os.sched_setaffinity(pid, [_current_core()])


def release_cores(pid: int) -> bool:
    """Let a process and all that it has started use every core that we may use; return whether any could not before.

    A process started meanwhile inherits the core of its parent: the walk is repeated until it finds none. Processes
    that are just being started are seen only later: after True the caller should call again.
    """
    allowed = os.sched_getaffinity(0)
    for walk in range(MAX_WALKS):
        released = [
            _release_thread(thread, allowed) for process in list_descendants(pid) for thread in _list_threads(process)
        ]
        if not any(released):
            return walk > 0
    return True


def _release_thread(thread: int, allowed: set[int]) -> bool:
    """Return whether the thread had to be released."""
    try:
        if os.sched_getaffinity(thread) == allowed:
            return False
        os.sched_setaffinity(thread, allowed)
    except OSError:  # it has ended meanwhile
        return False
    return True


def _list_threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


PIPE_BLOCK = 1 << 16
MAX_BLOCKS = 32


class OutputPipe:
    """A pipe that is read to its end: the beginning is kept, the rest is counted."""

    def __init__(self, keep: int) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._keep, self._data = keep, bytearray()
        self.total = 0
        self.open = True

    def drain(self) -> None:
        """Read what is there; if the writer is faster than we are, no more than a pipe can ever hold."""
        for _ in range(MAX_BLOCKS):
            try:
                data = os.read(self.read_fd, PIPE_BLOCK)
            except BlockingIOError:
                return
            self.open = bool(data)
            self.total += len(data)
            if len(self._data) < self._keep:
                self._data += data[: self._keep - len(self._data)]
            if len(data) < PIPE_BLOCK:
                return

    def reset(self, keep: int) -> None:
        """Forget what came, and keep this much of what comes."""
        self._keep, self._data, self.total = keep, bytearray(), 0

    @property
    def truncated(self) -> bool:
        """Whether more came than is kept."""
        return self.total > self._keep

    def text(self) -> str:
        """Return what is kept; bytes that are not UTF-8 become replacement characters."""
        return self._data.decode(errors="replace")

    def close_both(self) -> None:
        """Close both ends, when there is no writer."""
        os.close(self.write_fd)
        self.close()

    def close(self) -> None:
        """Close the reading end."""
        os.close(self.read_fd)


SETUP_S = 30.0
MAX_DYING_S = 30.0
MAX_POLL_S = 3600.0
"""Nothing is waited for longer without a check: the kernel counts milliseconds in few bits."""
FLOOD_BYTES = 64 << 20
COUNT_S = 0.05
"""How often processes are counted."""
CORES = max(1, min(os.cpu_count() or 1, MAX_THREADS))


class Watchdog:
    """Enforces the limits of code that is running. Until `begin`, only the deadline for the set-up counts.

    `process` is killed when a limit is reached; `clock` measures the CPU time. `shared_core`: it starts on one core
    with another process, and is released from there when it takes long.
    """

    def __init__(
        self,
        process: GuestProcess,
        limits: Limits,
        streams: Sequence[OutputPipe],
        setup_s: float = SETUP_S,
        clock: CpuClock | None = None,
        shared_core: bool = False,
    ) -> None:
        self._process, self._limits, self._streams = process, limits, streams
        self._clock = clock or process
        self.kill_status: RunStatus | None = None
        self._deadline = time.monotonic() + setup_s
        self._began: float | None = None
        self._cpu_before = 0.0
        self._shared_core, self._release_at = shared_core, math.inf
        self.kill_error: ProgramError | None = None
        self._count_at = 0.0 if limits.processes > 1 else math.inf
        self._poll = select.poll()

    def begin(self) -> None:
        """Start the clocks."""
        self._cpu_before = self._clock.cpu_s()
        self._began = time.monotonic()
        self._deadline = self._began + self._limits.wall_s
        if self._shared_core:
            self._release_at = self._began + TOGETHER_S

    @property
    def seconds(self) -> float:
        """The time since it began."""
        return time.monotonic() - self._began if self._began else 0.0

    @property
    def cpu_seconds(self) -> float:
        """The CPU time since it began."""
        return self.cpu_since_begin(self._clock.cpu_s())

    def cpu_since_begin(self, cpu_s: float) -> float:
        """Return how much of a process's CPU time was used since the clocks started."""
        return max(0.0, cpu_s - self._cpu_before)

    def wait(self, handlers: Mapping[int, Callable[[], bool]]) -> None:
        """Wait until a handler of a ready descriptor returns True."""
        pipes = {stream.read_fd: stream for stream in self._streams if stream.open}
        for handle in (*pipes, *handlers):
            self._poll.register(handle, select.POLLIN)
        is_over = False
        while not is_over:
            for handle, event in self._poll.poll(max(1, min(self._poll_timeout_s(), MAX_POLL_S) * 1000)):
                if handle in handlers:
                    is_over = handlers[handle]() or is_over
                else:
                    pipes[handle].drain()
                if event & select.POLLHUP and (handle in handlers or not pipes[handle].open):
                    self.unregister(handle)
            self._check_limits()

    def unregister(self, handle: int) -> None:
        """Stop polling a descriptor."""
        with suppress(KeyError):
            self._poll.unregister(handle)

    def _poll_timeout_s(self) -> float:
        """Return how long no limit can be reached: on every core CPU time runs no faster than the wall clock."""
        wall = min(self._deadline, self._release_at, max(self._count_at, self._began or math.inf)) - time.monotonic()
        if self._began is None or self.kill_status:
            return wall
        return max(0.002, min(wall, (self._limits.seconds - self.cpu_seconds) / CORES))

    def _check_limits(self) -> None:
        now = time.monotonic()
        if now > self._release_at:
            self._release_at = now + TOGETHER_S if release_cores(self._process.pid) else math.inf
        late = now > self._deadline
        if self.kill_status:
            if late:
                raise SandboxError(f"process {self._process.pid} does not die")
        elif self._began is None:
            if late:
                self.kill("killed")
        elif late or self.cpu_seconds > self._limits.seconds:
            self.kill("timeout")
        elif sum(stream.total for stream in self._streams) > FLOOD_BYTES:
            self.kill("output")
        elif now > self._count_at:
            self._count_at = now + COUNT_S
            self._check_processes()

    def _check_processes(self) -> None:
        """Kill code that has more processes than it may have: the kernel counts threads too, which may be many."""
        most = self._limits.processes
        if count_processes(self._process.pid) > most:
            self.kill_error = ProgramError("Killed", f"killed: more than {most} processes at a time")
            self.kill("killed")

    def kill(self, status: RunStatus) -> None:
        """Kill the process; the first reason is the one recorded."""
        self.kill_status = self.kill_status or status
        self._deadline = time.monotonic() + MAX_DYING_S
        self._process.kill()


def status_of_death(code: int | None, cpu_s: float, limits: Limits, *, can_kill: bool) -> RunStatus:
    """Return the status of a process that ended without a valid report.

    `can_kill`: whether we, or its own code, can have sent it a SIGKILL. If not, something else on this machine did, and
    that says nothing about the code: SandboxError.
    """
    if code == -signal.SIGKILL:
        if cpu_s < limits.seconds and not can_kill:
            raise SandboxError("the guest was killed from outside: by the machine's OOM killer, a scheduler or a user")
        return "timeout" if cpu_s >= limits.seconds else "killed"
    if code is None or code < 0:
        return "timeout" if code == -signal.SIGXCPU else "crash"
    return "error" if code else "ok"


def out_of_memory(limits: Limits) -> GuestReport:
    """Return the report of a program that the kernel killed, in whole or in part, because its memory was used up."""
    return GuestReport(error=ProgramError("OutOfMemory", f"killed: more than {limits.memory_mb} MB in all"))


def status_of_report(report: GuestReport) -> RunStatus:
    """Return the status that a report of the code stands for."""
    if report.error is not None:
        return "memory" if report.memory else "error"
    return "error" if report.exit else "ok"
