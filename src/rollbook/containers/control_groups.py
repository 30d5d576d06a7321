"""What the kernel knows of a container's limits: kills because of memory, processes that cannot be started, and the
quota of CPU time.

The kernel counts kills in the container's control group. The group, and with it the count, is gone soon after the first
process is killed, and podman remembers only whether there ever was a kill. So we ask for an event of each kill when the
container starts, and note the time.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections import deque
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
V1_FILE = "memory.oom_control"
IN_MODIFY = 2
"""The event of inotify for a file that has changed."""

SPARE_PROCESSES = 32
"""What the runtime needs to start a process, with its threads."""

SHOW_GROUPS = 'while read -r line; do echo "$line"; done < /proc/self/cgroup'
"""A command for the shell of a container that needs no program of the image."""


class MemoryWatch:
    """Notes when a running container had used up its memory; `close` ends that. It needs a running event loop."""

    def __init__(self, groups: str) -> None:
        """`groups` is /proc/PID/cgroup of the container's first process as this machine sees it."""
        self._file = find_kill_count(groups)
        self._times: deque[float] = deque(maxlen=2)
        self._kills = 0
        self._event: int | None = None
        with suppress(OSError):
            self._event = self._request_events()

    @property
    def is_active(self) -> bool:
        """Whether the kernel reports events to us."""
        return self._event is not None

    @property
    def is_exact(self) -> bool:
        """Whether every event is a kill (cgroup v1); else podman must confirm that there was one."""
        return self._file is not None and self._file.name == V1_FILE

    def last_kill_time(self) -> float | None:
        """Return when a process was last killed because of the memory limit, in seconds since the epoch."""
        times = list(self._times)
        if self.is_exact and self._file and not self._file.exists():
            times = times[:-1]  # the end of the group is an event too
        return times[-1] if times else None

    def _request_events(self) -> int | None:
        if self._file is None:
            return None
        event = _request_events(self._file) if self.is_exact else _watch_changes(self._file)
        asyncio.get_running_loop().add_reader(event, self._count_events if self.is_exact else self._compare_count)
        return event

    def _count_events(self) -> None:
        assert self._event is not None
        with suppress(BlockingIOError):
            self._times.extend([time.time()] * min(os.eventfd_read(self._event), 2))

    def _compare_count(self) -> None:
        """Note a kill if the count has grown; the file also changes when memory is reclaimed.

        If the group is gone, the change was one of its last, and whether it was a kill is for podman to say.
        """
        assert self._event is not None
        assert self._file is not None
        with suppress(BlockingIOError):
            os.read(self._event, 1 << 12)
        try:
            kills = read_kill_count(self._file)
        except OSError:
            kills = self._kills + 1
        if kills > self._kills:
            self._kills = kills
            self._times.append(time.time())

    def close(self) -> None:
        """Stop watching."""
        if self._event is not None:
            asyncio.get_running_loop().remove_reader(self._event)
            os.close(self._event)
            self._event = None


def find_kill_count(groups: str) -> Path | None:
    """Return the file of this machine that counts the kills in a process's control group."""
    return _find_file(groups, "memory", V1_FILE, "memory.events")


def list_processes(groups: str) -> list[int]:
    """Return the processes of a control group by their ids on this machine; OSError if the group is gone."""
    file = _find_file(groups, "memory", "cgroup.procs", "cgroup.procs")
    return [int(pid) for pid in file.read_text().split()] if file else []


def kill_entered(groups: str, older: Container[int] = ()) -> None:
    """Kill the processes of a container that came from outside: their parents are not in its control group.

    That is its first process, and each one that the runtime starts in it later. `older` are left alone.
    """
    inside = _list_or_nothing(groups)
    entered = {pid for pid in inside if _read_parent(pid) not in inside}
    for pid in entered | _list_entering(entered):
        if pid not in older:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _list_or_nothing(groups: str) -> list[int]:
    with suppress(OSError):
        return list_processes(groups)
    return []


def _list_entering(entered: Iterable[int]) -> set[int]:
    """Return processes that the runtime has moved into a container's process namespace, but not into its group yet."""
    spaces = {_read_namespace(pid) for pid in entered} - {_read_namespace(os.getpid()), ""}
    if not spaces:
        return set()
    found = {int(name) for name in os.listdir("/proc") if name.isdigit() and _read_namespace(int(name)) in spaces}
    return {pid for pid in found if _read_parent(pid) not in found}


def _read_namespace(pid: int) -> str:
    """Return the process namespace of a process; nothing if it has ended, or we may not look."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _read_parent(pid: int) -> int:
    """Return the parent of a process; 0 if it has ended. The name, in parentheses, may contain anything."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def find_pipe(pids: Iterable[int], inner_pid: int, descriptor: int) -> str:
    """Return the pipe that a process has open, by its name in /proc; `inner_pid` is its id inside the container."""
    for pid in pids:
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            ids = next(line for line in lines if line.startswith("NSpid:")).split()
            if ids[-1] == str(inner_pid):
                return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    return ""


def has_open(pid: int, pipe: str) -> bool:
    """Return whether a process has a pipe open; False where we may not look."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                if os.readlink(entry.path) == pipe:
                    return True
    return False


def has_too_many_processes(groups: str) -> bool:
    """Return whether a control group has so many processes that a shell may not start."""
    file = _find_file(groups, "pids", "pids.current", "pids.current")
    with suppress(OSError, ValueError):
        return (
            file is not None and int(file.read_text()) > int(file.with_name("pids.max").read_text()) - SPARE_PROCESSES
        )
    return False


def lift_cpu_quota(groups: str) -> bool:
    """Let the processes of a control group use all the CPU time they can get; return whether there is such a group.

    A process that is killed needs CPU time to end. Hundreds of them that share a small quota would take minutes.
    """
    # The root is not a container's group. A container with its own view of cgroup v2 shows its group as the root.
    lines = [line for line in groups.splitlines() if not line.endswith(":/")]
    file = _find_file("\n".join(lines), "cpu", "cpu.cfs_quota_us", "cpu.max")
    with suppress(OSError):
        return file is not None and bool(file.write_text("max" if file.name == "cpu.max" else "-1"))
    return False


def _find_file(groups: str, controller: str, v1_name: str, v2_name: str) -> Path | None:
    for line in groups.splitlines():
        _, controllers, place = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(","):
            file = Path(f"{CGROUPS}/{controller}{place}/{v1_name}")
        elif not controllers and place.strip("/"):  # a container with cgroup v2 takes its own group for the root
            file = Path(f"{CGROUPS}{place}/{v2_name}")
        else:
            continue
        if file.is_file():
            return file
    return None


def read_kill_count(file: Path) -> int:
    """Return how many processes the kernel has killed in a control group; OSError if the group is gone."""
    counts = dict(line.split() for line in file.read_text().splitlines())
    return int(counts.get("oom_kill", 0))


def _request_events(file: Path) -> int:
    """Return an event counter of the kernel (cgroup v1) that counts how often the memory of a group was exhausted."""
    event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        with file.open("rb") as counts:
            (file.parent / "cgroup.event_control").write_text(f"{event} {counts.fileno()}")
    except BaseException:
        os.close(event)
        raise
    return event


def _watch_changes(file: Path) -> int:
    """Return a descriptor that is readable when a file has changed: the kernel reports kills (cgroup v2) like that."""
    libc = ctypes.CDLL(None, use_errno=True)
    event: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if event < 0 or libc.inotify_add_watch(event, os.fsencode(file), IN_MODIFY) < 0:
        code = ctypes.get_errno()
        if event >= 0:
            os.close(event)
        raise OSError(code, os.strerror(code))
    return event
