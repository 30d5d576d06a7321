"""The hierarchies of control groups as this process sees them: where they are mounted, and where it is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ENV = "ROLLBOOK_CGROUP"
PROC = Path("/proc/self")


def candidates(proc: Path = PROC) -> list[tuple[Path, int]]:
    """Folders whose groups may bound memory, with the version of their hierarchy."""
    if named := os.environ.get(ENV):
        return [(Path(named), 2 if Path(named, "cgroup.controllers").exists() else 1)]
    found = [(place, 1) for place in _places("memory", proc)]
    for place in _places("", proc):
        found += [(folder, 2) for folder in (place, place.parent) if _gives_memory(folder)]
    return found


def clocks(proc: Path = PROC) -> list[Path]:
    """Folders of version 1 whose groups may tell CPU time."""
    return list(_places("cpuacct", proc))


def points(proc: Path = PROC) -> list[Path]:
    """Where hierarchies are mounted in which groups of ours may lie."""
    named = [Path(os.environ[ENV])] if os.environ.get(ENV) else []
    wanted = [mount for mount in _mounts(proc) if _kind(mount) == "cgroup2" or _has(mount, "memory", "cpuacct")]
    return named + [Path(mount[4]) for mount in wanted]


def _places(controller: str, proc: Path) -> Iterator[Path]:
    """Where this process is in the hierarchy of a controller; of no controller is the one of version 2."""
    for _, controllers, path in _own(proc):
        if controller not in controllers.split(","):
            continue
        for mount in _mounts(proc):
            if _has(mount, controller) if controller else _kind(mount) == "cgroup2":
                yield _place(mount, path)


def _own(proc: Path) -> list[list[str]]:
    try:
        return [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
    except OSError:
        return []


def _mounts(proc: Path) -> list[list[str]]:
    try:
        return [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return []


def _kind(mount: list[str]) -> str:
    return mount[mount.index("-") + 1]


def _has(mount: list[str], *controllers: str) -> bool:
    return _kind(mount) == "cgroup" and not set(controllers).isdisjoint(mount[-1].split(","))


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
