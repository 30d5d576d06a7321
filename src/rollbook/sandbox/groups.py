"""Control groups, where this process may make some: they bound the memory of all processes of a guest together.

Of version 1 the memory controller will do, below the group that this process is in. In version 2 a group with processes
in it gives no controllers to those below it, so that a neighbour is made instead, where that is permitted; or one says
where with ROLLBOOK_CGROUP, a group that was delegated to this user and has no processes of its own.
"""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from pathlib import Path

from rollbook.sandbox import owner
from rollbook.sandbox.errors import SandboxError

ENV = "ROLLBOOK_CGROUP"
REMOVE_S = 2.0
_number = itertools.count()


class Group:
    """One control group of ours."""

    def __init__(self, path: Path, version: int) -> None:
        self._path, self._version = path, version
        self._limit = 0
        self.seen = 0
        """The kills that were there when somebody last looked."""

    def enter(self, pid: int) -> None:
        """Move a process here; what it starts will be here too."""
        self._write("cgroup.procs", str(pid))

    def door(self) -> int:
        """A descriptor by which a process moves itself here: it writes a 0."""
        return os.open(self._path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

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
        while time.monotonic() < end:
            try:
                return self._path.rmdir()
            except FileNotFoundError:
                return None
            except OSError:
                time.sleep(0.005)
        return None

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

    def __init__(self, base: Path, version: int) -> None:
        self._base, self._version = base, version

    def make(self) -> Group:
        """A new one, whose name tells whose it is."""
        path = self._base / f"{owner.prefix()}{next(_number)}"
        try:
            path.mkdir()
        except OSError as error:
            raise SandboxError(f"no control group could be made: {error}") from None
        return Group(path, self._version)

    def clear(self) -> None:
        """Remove those of the dead."""
        for path in owner.left_behind(self._base):
            with suppress(OSError):
                path.rmdir()


def find() -> Groups | None:
    """Where this process may make groups that bound memory; None if nowhere."""
    for base, version in candidates():
        groups = Groups(base, version)
        groups.clear()
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


def candidates(proc: Path = Path("/proc/self")) -> list[tuple[Path, int]]:
    """Folders that may serve, with the version of their hierarchy."""
    if named := os.environ.get(ENV):
        return [(Path(named), 2 if Path(named, "cgroup.controllers").exists() else 1)]
    try:
        own = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return []
    found: list[tuple[Path, int]] = []
    for _, controllers, path in own:
        if "memory" in controllers.split(","):
            found += [(_place(mount, path), 1) for mount in mounts if _kind(mount) == "cgroup" and _memory(mount)]
        elif not controllers:
            for mount in mounts:
                if _kind(mount) == "cgroup2":
                    place = _place(mount, path)
                    found += [(folder, 2) for folder in (place, place.parent) if _gives_memory(folder)]
    return found


def _kind(mount: list[str]) -> str:
    return mount[mount.index("-") + 1]


def _memory(mount: list[str]) -> bool:
    return "memory" in mount[-1].split(",")


def _place(mount: list[str], path: str) -> Path:
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
