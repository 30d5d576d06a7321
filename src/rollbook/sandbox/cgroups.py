"""Bound the memory of all processes of a guest together with control groups, and count their CPU time.

Where groups are made: in version 1 the memory controller is enough, below the group of this process; CPU time is
counted in another hierarchy, if that is writable too. In version 2 a group that contains processes cannot give
controllers to the groups below it, so a sibling is made where that is permitted; or ROLLBOOK_CGROUP names a group that
was delegated to this user and has no processes of its own.

Memory: only a group can bound the total of several processes, their files and the kernel's memory for them; beyond the
limit it kills. A zygote shares a group with the guests that run one after another: no process has to be moved, so a run
costs nothing more. A session has its own group, and so does a guest that may have several processes: their CPU time is
counted there. Without a group the address space of each process is limited, which also counts memory that is only
reserved; with a group it is not. Instead the private memory of each process is limited as well, so that code that asks
for far too much gets a MemoryError, which it may catch; this limit leaves extra room for the stacks of all threads,
which are hardly ever used. Tests and code run at the same time, so the code has a group of its own, which the zygote
keeps for the next code; neither gets extra room.
The group of a snapshot session cannot tell the state from the turn that began as a copy of it: every turn may
add as much as the limit, and is measured when it is over.

Names of groups and temporary folders identify the process that owns them, so that leftovers of a killed process can be
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

from rollbook.errors import SandboxError
from rollbook.sandbox.limits import MAX_THREADS, Limits
from rollbook.sandbox.supervision import CpuClock

MAX_FOLDERS = 10_000
_match_owner_name = re.compile(r"rollbook-(\d+)-(\d+)-(\d+)-").match


def owner_prefix() -> str:
    """Return a name prefix unique to this process: its pid namespace, its pid and its start time."""
    pid = os.getpid()
    return f"rollbook-{_read_pid_namespace()}-{pid}-{_read_start_time(pid)}-"


def find_leftovers(folder: Path) -> Iterator[Path]:
    """Yield what dead processes left in a folder, except in other pid namespaces, whose processes cannot be checked."""
    with suppress(OSError):
        for name in os.listdir(folder):
            match = _match_owner_name(name)
            if match and int(match[1]) == _read_pid_namespace() and _read_start_time(int(match[2])) != int(match[3]):
                yield folder / name


def remove_stale_folders(folder: Path) -> None:
    """Remove the temporary folders of dead processes."""
    for path in find_leftovers(folder):
        shutil.rmtree(path, ignore_errors=True)


def remove_stale_groups(point: Path) -> None:
    """Remove the control groups of dead processes below a mount point, except those whose guests are still dying."""
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
    """Return the start time of a process in kernel ticks; 0 when there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


CGROUP_ENV = "ROLLBOOK_CGROUP"
PROC_SELF = Path("/proc/self")


def list_memory_folders(proc: Path = PROC_SELF) -> list[tuple[Path, int]]:
    """List the folders whose groups may bound memory, with the version of their hierarchy."""
    if configured := os.environ.get(CGROUP_ENV):
        return [(Path(configured), 2 if Path(configured, "cgroup.controllers").exists() else 1)]
    folders = [(own, 1) for own in _find_own_folders("memory", proc)]
    for own in _find_own_folders("", proc):
        folders += [(folder, 2) for folder in (own, own.parent) if _gives_memory(folder)]
    return folders


def list_cpu_folders(proc: Path = PROC_SELF) -> list[Path]:
    """List the folders of version 1 whose groups may count CPU time."""
    return list(_find_own_folders("cpuacct", proc))


def list_mount_points(proc: Path = PROC_SELF) -> list[Path]:
    """List the mount points of the hierarchies that may contain groups of ours."""
    configured = [Path(os.environ[CGROUP_ENV])] if os.environ.get(CGROUP_ENV) else []
    mounts = [
        mount
        for mount in _read_mounts(proc)
        if _filesystem_type(mount) == "cgroup2" or _has_controller(mount, "memory", "cpuacct")
    ]
    return configured + [Path(mount[4]) for mount in mounts]


def _find_own_folders(controller: str, proc: Path) -> Iterator[Path]:
    """Yield the folders of this process in a controller's hierarchy; an empty name means the hierarchy of version 2."""
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
    """Return the path of a group below its mount, which may show only a part of the hierarchy."""
    root, point = mount[3], mount[4]
    relative = path[len(root) :] if path.startswith(root) else path
    return Path(point + "/" + relative.lstrip("/"))


def _gives_memory(folder: Path) -> bool:
    """Return whether the groups below a folder can bound memory."""
    try:
        return "memory" in (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


REMOVE_S = 2.0
_group_numbers = itertools.count()
FULL_BYTES = 1 << 20
"""A group that has less left than this has reached its limit: memory is charged in small batches."""


class CgroupTimer(NamedTuple):
    """Reads the CPU time that a group counts, in the unit of its file."""

    file: Path
    per_second: float

    def cpu_s(self) -> float:
        """Return the CPU time of all processes that are or were in the group."""
        text = self.file.read_text()
        return int(text.split()[1 if text.startswith("usage_usec") else 0]) / self.per_second


class MemoryCounts(NamedTuple):
    """How many processes of a group the kernel's OOM killer has ended, and how often the group reached its limit.

    The first count alone proves nothing about the group: it includes processes that were killed because the memory of
    the machine, or of a group further up, was used up.
    """

    kills: int
    limit_hits: int


class ControlGroup:
    """One control group of ours. In version 1 a second group in another hierarchy counts its CPU time."""

    def __init__(self, path: Path, version: int, cpu_path: Path | None = None) -> None:
        self._path, self._version, self._cpu_path = path, version, cpu_path
        self._limit = 0
        self.last_counts = MemoryCounts(0, 0)
        """The counts when they were last read."""

    @property
    def clock(self) -> CgroupTimer | None:
        """The file that counts its CPU time, if there is one."""
        if self._version == 2:
            return CgroupTimer(self._path / "cpu.stat", 1e6)
        return CgroupTimer(self._cpu_path / "cpuacct.usage", 1e9) if self._cpu_path else None

    def enter(self, pid: int) -> None:
        """Move a process here; processes that it starts will be here too."""
        self._write("cgroup.procs", str(pid))

    def open_procs_files(self) -> list[int]:
        """Open the files by which a process moves itself here: it writes a 0 to each."""
        paths = [self._path, *([self._cpu_path] if self._cpu_path else [])]
        return [os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for path in paths]

    def used_bytes(self) -> int:
        """Return the memory in use."""
        return int(self._read("memory.usage_in_bytes" if self._version == 1 else "memory.current"))

    def set_limit(self, size: int) -> None:
        """Limit the memory of all processes here together; none of it is swapped out."""
        if size == self._limit:
            return
        if self._version == 2:
            self._write("memory.max", str(size))
            self._try_write("memory.swap.max", "0")
        else:
            # The limit with swap must never be below the one without, whether they rise or fall.
            names = ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]
            for name in names if size > self._limit else names[::-1]:
                (self._write if "memsw" not in name else self._try_write)(name, str(size))
            self._try_write("memory.max_usage_in_bytes", "0")  # what was reached below another limit does not count
        self._limit = size

    def read_counts(self) -> MemoryCounts:
        """Read how many processes here were killed for lack of memory, and how often the limit was reached."""
        text = self._read("memory.oom_control" if self._version == 1 else "memory.events")
        fields = dict(line.split() for line in text.splitlines())
        before = self.last_counts.limit_hits
        hits = int(fields.get("oom", 0)) if self._version == 2 else before + self._pop_limit_hit()
        self.last_counts = MemoryCounts(int(fields.get("oom_kill", 0)), hits)
        return self.last_counts

    def _pop_limit_hit(self) -> bool:
        """Return whether a group of version 1 has been full since the last call: recent kernels do not count that."""
        is_full = int(self._read("memory.max_usage_in_bytes")) > self._limit - FULL_BYTES
        self._try_write("memory.max_usage_in_bytes", "0")
        return is_full

    def remove(self) -> None:
        """Remove the group, waiting a moment for its last process to exit; else a later process of ours removes it."""
        end = time.monotonic() + REMOVE_S
        for path in (self._path, self._cpu_path):
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
    """A folder in which groups can be made."""

    def __init__(self, base: Path, version: int, cpu_base: Path | None = None) -> None:
        self._base, self._version, self._cpu_base = base, version, cpu_base

    def make(self, clock: bool = False) -> ControlGroup:
        """Make a group whose name identifies its owner; `clock` adds what counts its CPU time."""
        name = f"{owner_prefix()}{next(_group_numbers)}"
        cpu_path = self._cpu_base / name if self._cpu_base and clock else None
        try:
            (self._base / name).mkdir()
            if cpu_path:
                cpu_path.mkdir()
        except OSError as error:
            _remove_group(self._base / name)
            raise SandboxError(f"no control group could be made: {error}") from None
        return ControlGroup(self._base / name, self._version, cpu_path)


def find_control_groups() -> ControlGroups | None:
    """Return where this process can make groups that bound memory, or None; first remove leftovers of dead
    processes."""
    for point in list_mount_points():
        remove_stale_groups(point)
    cpu_base = next(filter(_can_create_groups, list_cpu_folders()), None)
    for base, version in list_memory_folders():
        groups = ControlGroups(base, version, cpu_base if version == 1 else None)
        if _can_limit_memory(groups):
            return groups
    return None


def _can_limit_memory(groups: ControlGroups) -> bool:
    """Return whether a new group accepts a memory limit, by trying it."""
    try:
        group = groups.make()
    except SandboxError:
        return False
    try:
        group.set_limit(1 << 30)
        group.read_counts()
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
"""What the kernel needs for a guest, and how much a copy of the interpreter grows when it runs."""
PAIRED_ROLES = ("candidate", "examiner")
"""Roles of which two run at the same time: they get no extra room."""
STAYING_ROLES = ("session", "snapshot")
STACKS_MB = 8 * MAX_THREADS
STEP_MB = 8


class MemoryAccount:
    """Counts the memory of one guest: in the group that it was forked in, in another that it joins, or in its own."""

    def __init__(
        self, group: ControlGroup, base: int, spare_mb: int, *, own: bool = False, joins: bool = False
    ) -> None:
        self._group, self._own, self._base = group, own, base
        self.spare_mb = spare_mb
        """How much private memory a process may reserve beyond the limit."""
        self._counts = group.last_counts
        self.procs_files = group.open_procs_files() if own or joins else []

    @property
    def clock(self) -> CpuClock | None:
        """The CPU time of all processes of the guest, if the group is its own and counts it."""
        return self._group.clock if self._own else None

    def renew_limit(self, limits: Limits, own_mb: float) -> None:
        """Allow the full limit again on top of `own_mb`, the memory in use; in steps, since every change takes time."""
        used_mb = STEP_MB * ceil(own_mb / STEP_MB)
        _set_limit(self._group, self._base + (used_mb << 20) + _count_guest_bytes(limits))

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process since the last call because the guest's memory was used up;
        SandboxError if it was not the guest's but the machine's, or that of a group further up."""
        before, self._counts = self._counts, self._group.read_counts()
        if self._counts.kills == before.kills:
            return False
        if self._counts.limit_hits == before.limit_hits:
            raise SandboxError(
                "a guest was killed because the memory of this machine or job was used up, not its own limit"
            )
        return True

    def close_procs_files(self) -> None:
        """Close the descriptors once they have been sent to the guest."""
        while self.procs_files:
            os.close(self.procs_files.pop())

    def close(self) -> None:
        """Remove the group of a guest that has ended."""
        self.close_procs_files()
        if self._own:
            self._group.remove()


class ZygoteMemory:
    """The memory accounts of one zygote's guests."""

    def __init__(self, groups: ControlGroups | None, pid: int) -> None:
        self._groups = groups
        self._base = 0
        self._group = _make_zygote_group(groups, pid) if groups else None
        self._candidate_group: ControlGroup | None = None

    @property
    def grouped(self) -> bool:
        """Whether the zygote has a control group."""
        return self._group is not None

    def set_baseline(self) -> None:
        """Record the memory of the started zygote, which does not count as a guest's."""
        if self._group:
            self._base = self._group.used_bytes()

    def open_account(self, role: str, limits: Limits) -> MemoryAccount | None:
        """Open the account of a new guest and set its limit; None without groups."""
        if not (self._groups and self._group):
            return None
        several, spare_mb = limits.processes > 1, 0 if role in PAIRED_ROLES else STACKS_MB
        if several or role in STAYING_ROLES:
            return self._open_own_account(limits)
        if role == "candidate":
            self._candidate_group = group = self._candidate_group or self._groups.make()
            _set_limit(group, self._base + _count_guest_bytes(limits))
            return MemoryAccount(group, self._base, spare_mb, joins=True)
        # The group contains the zygote and its copy, the guest.
        _set_limit(self._group, 2 * self._base + _count_guest_bytes(limits))
        return MemoryAccount(self._group, self._base, spare_mb)

    def _open_own_account(self, limits: Limits) -> MemoryAccount:
        assert self._groups
        group = self._groups.make(clock=limits.processes > 1)
        try:
            _set_limit(group, self._base + _count_guest_bytes(limits))
            return MemoryAccount(group, self._base, STACKS_MB, own=True)
        except BaseException:
            group.remove()
            raise

    def close(self) -> None:
        """Remove the groups of a zygote that has been killed."""
        for group in (self._group, self._candidate_group):
            if group:
                group.remove()


def _count_guest_bytes(limits: Limits) -> int:
    """Return the bytes a guest may use beyond the interpreter: its limit, and its files, which are memory as well."""
    return limits.memory_mb + limits.files_mb + SLACK_MB + PROCESS_MB * limits.processes << 20


def _set_limit(group: ControlGroup, size: int) -> None:
    try:
        group.set_limit(size)
    except OSError as error:
        raise SandboxError(f"the memory of a guest cannot be limited: {error}") from None


def _make_zygote_group(groups: ControlGroups, pid: int) -> ControlGroup:
    group = groups.make()
    try:
        group.enter(pid)
    except OSError as error:
        group.remove()
        raise SandboxError(f"the zygote could not be moved to its control group: {error}") from None
    return group
