"""What the kernel knows of a container's limits: kills because of memory, processes that cannot be started, and the
quota of CPU time.

The kernel counts kills in the container's control group. With cgroup v1 the group, and with it the count, is gone soon
after the first process is killed, and podman's monitor does not see that kill. So we ask for an event of each kill when
the container starts.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
V1_FILE = "memory.oom_control"
SPARE_PROCESSES = 32
"""What the runtime needs to start a process, with its threads."""

SHOW_GROUPS = 'while read -r line; do echo "$line"; done < /proc/self/cgroup'
"""A command for the shell of a container that needs no program of the image."""


class MemoryWatch:
    """Watches the memory control group of a running container; `close` ends that."""

    def __init__(self, groups: str) -> None:
        """`groups` is /proc/self/cgroup as the container sees it: with cgroup v1, the groups of the whole machine.

        With v2 it sees no path of this machine, and nothing is watched: there podman's monitor counts reliably.
        """
        file = find_kill_count(groups)
        self._file = file if file and file.name == V1_FILE else None
        self._event: int | None = None
        self._events = 0
        if self._file:
            with suppress(OSError):
                self._event = _request_events(self._file)

    def saw_kills(self) -> bool:
        """Return whether a process was killed because of the memory limit."""
        if self._file is None:
            return False
        try:
            return read_kill_count(self._file) > 0
        except OSError:
            # The end of the group is an event too.
            return self._count_events() > 1

    def _count_events(self) -> int:
        if self._event is not None:
            with suppress(BlockingIOError):
                self._events += os.eventfd_read(self._event)
        return self._events

    def close(self) -> None:
        """Stop watching."""
        if self._event is not None:
            os.close(self._event)
            self._event = None


def find_kill_count(groups: str) -> Path | None:
    """Return the file of this machine that counts the kills in a process's control group."""
    return _find_file(groups, "memory", V1_FILE, "memory.events")


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
        elif not controllers and place:
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
