"""Control groups, where this process may make some: they bound the memory of all processes of a guest together, and
tell their CPU time.

Of version 1 the memory controller will do, below the group that this process is in; the CPU time is told by another
hierarchy, if that may be written too. In version 2 a group with processes in it gives no controllers to those below it,
so that a neighbour is made instead, where that is permitted; or one says where with ROLLBOOK_CGROUP, a group that was
delegated to this user and has no processes of its own.
"""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rollbook.sandbox import owner
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.hierarchies import candidates, clocks, points

REMOVE_S = 2.0
_number = itertools.count()


class Timer(NamedTuple):
    """The CPU time that a group tells, in units of its own."""

    file: Path
    per_second: float

    def cpu_s(self) -> float:
        """Of all processes in it, also of those that are dead."""
        text = self.file.read_text()
        return int(text.split()[1 if text.startswith("usage_usec") else 0]) / self.per_second


class Group:
    """One control group of ours. In version 1 its CPU time is told by a twin in another hierarchy."""

    def __init__(self, path: Path, version: int, twin: Path | None = None) -> None:
        self._path, self._version, self._twin = path, version, twin
        self._limit = 0
        self.seen = 0
        """The kills that were there when somebody last looked."""

    @property
    def clock(self) -> Timer | None:
        """Where its CPU time is told."""
        if self._version == 2:
            return Timer(self._path / "cpu.stat", 1e6)
        return Timer(self._twin / "cpuacct.usage", 1e9) if self._twin else None

    def enter(self, pid: int) -> None:
        """Move a process here; what it starts will be here too."""
        self._write("cgroup.procs", str(pid))

    def doors(self) -> list[int]:
        """Descriptors by which a process moves itself here: it writes a 0 to each."""
        places = [self._path, *([self._twin] if self._twin else [])]
        return [os.open(place / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for place in places]

    def used_bytes(self) -> int:
        """The memory in use."""
        return int(self._read("memory.usage_in_bytes" if self._version == 1 else "memory.current"))

    def limit(self, size: int) -> None:
        """The most memory that all in it may have; nothing of it is swapped out."""
        if size == self._limit:
            return
        if self._version == 2:
            self._write("memory.max", str(size))
            self._try("memory.swap.max", "0")
        else:
            # The one with swap must never be below the one without, whichever way they go.
            names = ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]
            for name in names if size > self._limit else names[::-1]:
                (self._write if "memsw" not in name else self._try)(name, str(size))
        self._limit = size

    def kills(self) -> int:
        """How many processes in it were killed since there was no memory left."""
        text = self._read("memory.oom_control" if self._version == 1 else "memory.events")
        fields = dict(line.split() for line in text.splitlines())
        self.seen = int(fields.get("oom_kill", 0))
        return self.seen

    def remove(self) -> None:
        """Away with it. Its last process may be on its way out still; what cannot go now, goes after we have."""
        end = time.monotonic() + REMOVE_S
        for path in (self._path, self._twin):
            while path and not _removed(path) and time.monotonic() < end:
                time.sleep(0.005)

    def _read(self, name: str) -> str:
        return (self._path / name).read_text()

    def _write(self, name: str, text: str) -> None:
        with open(self._path / name, "wb", buffering=0) as file:
            file.write(text.encode())

    def _try(self, name: str, text: str) -> None:
        with suppress(OSError):
            self._write(name, text)


class Groups:
    """Where groups can be made."""

    def __init__(self, base: Path, version: int, clocks: Path | None = None) -> None:
        self._base, self._version, self._clocks = base, version, clocks

    def make(self, clock: bool = False) -> Group:
        """A new one, whose name tells whose it is; one whose CPU time is wanted may need a twin."""
        name = f"{owner.prefix()}{next(_number)}"
        twin = self._clocks / name if self._clocks and clock else None
        try:
            (self._base / name).mkdir()
            if twin:
                twin.mkdir()
        except OSError as error:
            _removed(self._base / name)
            raise SandboxError(f"no control group could be made: {error}") from None
        return Group(self._base / name, self._version, twin)


def find() -> Groups | None:
    """Where this process may make groups that bound memory; None if nowhere. What the dead have left goes first."""
    for point in points():
        owner.clear_groups(point)
    times = next(filter(_takes_groups, clocks()), None)
    for base, version in candidates():
        groups = Groups(base, version, times if version == 1 else None)
        if _works(groups):
            return groups
    return None


def _works(groups: Groups) -> bool:
    """Tried out: a group that takes a limit."""
    try:
        group = groups.make()
    except SandboxError:
        return False
    try:
        group.limit(1 << 30)
        group.kills()
    except OSError:
        return False
    finally:
        group.remove()
    return True


def _takes_groups(base: Path) -> bool:
    path = base / f"{owner.prefix()}{next(_number)}"
    try:
        path.mkdir()
    except OSError:
        return False
    return _removed(path)


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
