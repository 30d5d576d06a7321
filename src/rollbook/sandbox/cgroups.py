"""Control groups: they bound the memory of all processes of a guest together, and count their CPU time.

Where: in version 1 the memory controller is enough, below the group that this process is in; CPU time is counted in
another hierarchy, if that is writable too. In version 2 a group with processes in it gives no controllers to the groups
below it, so a sibling is made instead, where that is permitted; or ROLLBOOK_CGROUP names a group that was delegated to
this user and has no processes of its own.

Memory: what processes have together, with their files and what the kernel holds for them, only a group can bound, and
it kills. A zygote lives in a group with those of its guests that run one after another: nothing has to be moved, and a
run costs nothing more. A session has a group of its own, and so has a guest that may have several processes: their CPU
time is counted there. Without a group the address space of each process is bounded, which counts what is merely
reserved. With one it is not. There a process's own private memory is bounded as well, so that code that asks for far
too much gets a MemoryError, which it may catch: beyond the limit is room for the stacks of all threads, which are
hardly ever used. Tests and code share a group, which cannot tell how much each has: there is no such room for them.
Nor can the group of a session that takes snapshots tell the state from the turn that began as a copy of it: every turn
may add as much as the limit says, and is measured when it is over.

Names of groups and temporary folders say which process owns them, so that what a killed process has left behind can be
found and removed.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import NamedTuple

from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.limits import MAX_THREADS, Limits
from rollbook.sandbox.supervision import CpuClock

MAX_FOLDERS = 10_000
_match_owner_name = re.compile(r"rollbook-(\d+)-(\d+)-(\d+)-").match


def owner_prefix() -> str:
    """The beginning of a name that only this process gives: its pid namespace, its number in it, when it began."""
    pid = os.getpid()
    return f"rollbook-{_read_pid_namespace()}-{pid}-{_read_start_time(pid)}-"


def find_leftovers(folder: Path) -> Iterator[Path]:
    """What processes have left in a folder that are dead; of those in other pid namespaces nobody can tell."""
    with suppress(OSError):
        for name in os.listdir(folder):
            found = _match_owner_name(name)
            if found and int(found[1]) == _read_pid_namespace() and _read_start_time(int(found[2])) != int(found[3]):
                yield folder / name


def remove_stale_folders(folder: Path) -> None:
    """Remove the temporary folders of the dead."""
    for path in find_leftovers(folder):
        shutil.rmtree(path, ignore_errors=True)


def remove_stale_groups(point: Path) -> None:
    """Remove the control groups of the dead, wherever they lie below a place; where guests still die, not yet."""
    folders = [point]
    for folder in folders:
        for path in find_leftovers(folder):
            with suppress(OSError):
                path.rmdir()
        if len(folders) < MAX_FOLDERS:
            folders += _list_folders(folder)


def _list_folders(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [
            Path(entry)
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and not _match_owner_name(entry.name)
        ]
    return []


def _read_pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _read_start_time(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


CGROUP_ENV = "ROLLBOOK_CGROUP"
PROC_SELF = Path("/proc/self")


def list_memory_folders(proc: Path = PROC_SELF) -> list[tuple[Path, int]]:
    """Folders whose groups may bound memory, with the version of their hierarchy."""
    if named := os.environ.get(CGROUP_ENV):
        return [(Path(named), 2 if Path(named, "cgroup.controllers").exists() else 1)]
    found = [(place, 1) for place in _find_own_folders("memory", proc)]
    for place in _find_own_folders("", proc):
        found += [(folder, 2) for folder in (place, place.parent) if _gives_memory(folder)]
    return found


def list_cpu_folders(proc: Path = PROC_SELF) -> list[Path]:
    """Folders of version 1 whose groups may tell CPU time."""
    return list(_find_own_folders("cpuacct", proc))


def list_mount_points(proc: Path = PROC_SELF) -> list[Path]:
    """Where hierarchies are mounted in which groups of ours may lie."""
    named = [Path(os.environ[CGROUP_ENV])] if os.environ.get(CGROUP_ENV) else []
    wanted = [
        mount
        for mount in _read_mounts(proc)
        if _filesystem_type(mount) == "cgroup2" or _has_controller(mount, "memory", "cpuacct")
    ]
    return named + [Path(mount[4]) for mount in wanted]


def _find_own_folders(controller: str, proc: Path) -> Iterator[Path]:
    """Where this process is in the hierarchy of a controller; of no controller is the one of version 2."""
    for _, controllers, path in _read_own_groups(proc):
        if controller not in controllers.split(","):
            continue
        for mount in _read_mounts(proc):
            if _has_controller(mount, controller) if controller else _filesystem_type(mount) == "cgroup2":
                yield _locate_group(mount, path)


def _read_own_groups(proc: Path) -> list[list[str]]:
    try:
        return [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
    except OSError:
        return []


def _read_mounts(proc: Path) -> list[list[str]]:
    try:
        return [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return []


def _filesystem_type(mount: list[str]) -> str:
    return mount[mount.index("-") + 1]


def _has_controller(mount: list[str], *controllers: str) -> bool:
    return _filesystem_type(mount) == "cgroup" and not set(controllers).isdisjoint(mount[-1].split(","))


def _locate_group(mount: list[str], path: str) -> Path:
    """Where a group is found below its mount, which may show a part of the hierarchy only."""
    root, point = mount[3], mount[4]
    below = path[len(root) :] if root != "/" and path.startswith(root) else path
    return Path(point + "/" + below.lstrip("/"))


def _gives_memory(folder: Path) -> bool:
    """Whether the groups below it can bound memory."""
    try:
        return "memory" in (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


REMOVE_S = 2.0
_group_numbers = itertools.count()


class CgroupTimer(NamedTuple):
    """The CPU time that a group tells, in units of its own."""

    file: Path
    per_second: float

    def cpu_s(self) -> float:
        """Of all processes in it, also of those that are dead."""
        text = self.file.read_text()
        return int(text.split()[1 if text.startswith("usage_usec") else 0]) / self.per_second


class ControlGroup:
    """One control group of ours. In version 1 its CPU time is told by a twin in another hierarchy."""

    def __init__(self, path: Path, version: int, twin: Path | None = None) -> None:
        self._path, self._version, self._twin = path, version, twin
        self._limit = 0
        self.last_kills = 0
        """The kills that were there when somebody last looked."""

    @property
    def clock(self) -> CgroupTimer | None:
        """Where its CPU time is told."""
        if self._version == 2:
            return CgroupTimer(self._path / "cpu.stat", 1e6)
        return CgroupTimer(self._twin / "cpuacct.usage", 1e9) if self._twin else None

    def enter(self, pid: int) -> None:
        """Move a process here; what it starts will be here too."""
        self._write("cgroup.procs", str(pid))

    def open_procs_files(self) -> list[int]:
        """Descriptors by which a process moves itself here: it writes a 0 to each."""
        places = [self._path, *([self._twin] if self._twin else [])]
        return [os.open(place / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for place in places]

    def used_bytes(self) -> int:
        """The memory in use."""
        return int(self._read("memory.usage_in_bytes" if self._version == 1 else "memory.current"))

    def set_limit(self, size: int) -> None:
        """The most memory that all in it may have; nothing of it is swapped out."""
        if size == self._limit:
            return
        if self._version == 2:
            self._write("memory.max", str(size))
            self._try_write("memory.swap.max", "0")
        else:
            # The one with swap must never be below the one without, whichever way they go.
            names = ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]
            for name in names if size > self._limit else names[::-1]:
                (self._write if "memsw" not in name else self._try_write)(name, str(size))
        self._limit = size

    def count_kills(self) -> int:
        """How many processes in it were killed since there was no memory left."""
        text = self._read("memory.oom_control" if self._version == 1 else "memory.events")
        fields = dict(line.split() for line in text.splitlines())
        self.last_kills = int(fields.get("oom_kill", 0))
        return self.last_kills

    def remove(self) -> None:
        """Away with it. Its last process may be on its way out still; what cannot go now, goes after we have."""
        end = time.monotonic() + REMOVE_S
        for path in (self._path, self._twin):
            while path and not _remove_group(path) and time.monotonic() < end:
                time.sleep(0.005)

    def _read(self, name: str) -> str:
        return (self._path / name).read_text()

    def _write(self, name: str, text: str) -> None:
        with open(self._path / name, "wb", buffering=0) as file:
            file.write(text.encode())

    def _try_write(self, name: str, text: str) -> None:
        with suppress(OSError):
            self._write(name, text)


class ControlGroups:
    """Where groups can be made."""

    def __init__(self, base: Path, version: int, cpu_base: Path | None = None) -> None:
        self._base, self._version, self._clocks = base, version, cpu_base

    def make(self, clock: bool = False) -> ControlGroup:
        """A new one, whose name tells whose it is; one whose CPU time is wanted may need a twin."""
        name = f"{owner_prefix()}{next(_group_numbers)}"
        twin = self._clocks / name if self._clocks and clock else None
        try:
            (self._base / name).mkdir()
            if twin:
                twin.mkdir()
        except OSError as error:
            _remove_group(self._base / name)
            raise SandboxError(f"no control group could be made: {error}") from None
        return ControlGroup(self._base / name, self._version, twin)


def find_control_groups() -> ControlGroups | None:
    """Where this process may make groups that bound memory; None if nowhere. What the dead have left goes first."""
    for point in list_mount_points():
        remove_stale_groups(point)
    times = next(filter(_can_create_groups, list_cpu_folders()), None)
    for base, version in list_memory_folders():
        groups = ControlGroups(base, version, times if version == 1 else None)
        if _can_limit_memory(groups):
            return groups
    return None


def _can_limit_memory(groups: ControlGroups) -> bool:
    """Tried out: a group that takes a limit."""
    try:
        group = groups.make()
    except SandboxError:
        return False
    try:
        group.set_limit(1 << 30)
        group.count_kills()
    except OSError:
        return False
    finally:
        group.remove()
    return True


def _can_create_groups(base: Path) -> bool:
    path = base / f"{owner_prefix()}{next(_group_numbers)}"
    try:
        path.mkdir()
    except OSError:
        return False
    return _remove_group(path)


def _remove_group(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


SLACK_MB, PROCESS_MB = 8, 4
"""What the kernel needs for a guest, and what a copy of the interpreter grows by when it runs."""
PAIRED_ROLES = ("candidate", "examiner")
"""Roles of which two share the zygote's group at the same time, each up to the limit."""
STAYING_ROLES = ("session", "snapshot")
STACKS_MB = 8 * MAX_THREADS
STEP_MB = 8


class MemoryAccount:
    """What a guest uses is counted here."""

    def __init__(self, group: ControlGroup, own: bool, base: int, spare_mb: int) -> None:
        self._group, self._own, self._base = group, own, base
        self.spare_mb = spare_mb
        """How much private memory a process may reserve beyond the limit."""
        self._kills = group.last_kills
        self.doors = group.open_procs_files() if own else []

    @property
    def clock(self) -> CpuClock | None:
        """The CPU time of all its processes, if that is told and the group is its own."""
        return self._group.clock if self._own else None

    def renew_limit(self, limits: Limits, own_mb: float) -> None:
        """Beyond what is held by now, as much again as the limit says; in steps, since every change takes time."""
        held_mb = STEP_MB * ceil(own_mb / STEP_MB)
        _set_limit(self._group, self._base + (held_mb << 20) + _count_guest_bytes(limits))

    def ran_out_of_memory(self) -> bool:
        """Whether somebody was killed for want of memory since this was last asked."""
        before, self._kills = self._kills, self._group.count_kills()
        return self._kills > before

    def close_doors(self) -> None:
        """The guest has been told where to go."""
        while self.doors:
            os.close(self.doors.pop())

    def close(self) -> None:
        """The guest is gone."""
        self.close_doors()
        if self._own:
            self._group.remove()


class ZygoteMemory:
    """The accounts of one zygote's guests."""

    def __init__(self, groups: ControlGroups | None, pid: int) -> None:
        self._groups = groups
        self._base = 0
        self._group = _make_zygote_group(groups, pid) if groups else None

    @property
    def grouped(self) -> bool:
        """Whether there are groups."""
        return self._group is not None

    def set_baseline(self) -> None:
        """The zygote is up: what it uses by now is not a guest's."""
        if self._group:
            self._base = self._group.used_bytes()

    def open_account(self, role: str, limits: Limits) -> MemoryAccount | None:
        """Where a new guest is counted, with its limit set; None without groups."""
        if not (self._groups and self._group):
            return None
        several = limits.processes > 1
        if not (role in STAYING_ROLES or several):
            guests = 2 if role in PAIRED_ROLES else 1
            # The zygote is in there, and its copy that is the guest.
            _set_limit(self._group, 2 * self._base + guests * _count_guest_bytes(limits))
            return MemoryAccount(self._group, False, self._base, STACKS_MB if guests == 1 else 0)
        group = self._groups.make(clock=several)
        try:
            _set_limit(group, self._base + _count_guest_bytes(limits))
            return MemoryAccount(group, True, self._base, STACKS_MB)
        except BaseException:
            group.remove()
            raise

    def close(self) -> None:
        """The zygote has been killed."""
        if self._group:
            self._group.remove()


def _count_guest_bytes(limits: Limits) -> int:
    """What a guest may have beyond the interpreter's own: its limit, and files, which are memory as well."""
    return limits.memory_mb + limits.files_mb + SLACK_MB + PROCESS_MB * limits.processes << 20


def _set_limit(group: ControlGroup, size: int) -> None:
    try:
        group.set_limit(size)
    except OSError as error:
        raise SandboxError(f"the memory of a guest cannot be bounded: {error}") from None


def _make_zygote_group(groups: ControlGroups, pid: int) -> ControlGroup:
    group = groups.make()
    try:
        group.enter(pid)
    except OSError as error:
        group.remove()
        raise SandboxError(f"the zygote could not be moved to its control group: {error}") from None
    return group
