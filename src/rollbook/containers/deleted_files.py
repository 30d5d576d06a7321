"""Count files that were deleted and are still open: they are in no folder, so podman does not count them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rollbook.containers.control_groups import list_processes

MOST_FILES = 200_000
"""How many open files are looked at in one count: code inside may open more than we have time for."""

_DELETED_MAPPING = re.compile(r"^([0-9a-f]+-[0-9a-f]+) .* \(deleted\)$", re.MULTILINE)


def count_deleted_bytes(groups: str) -> int:
    """Return what deleted files of a container use on the disk; 0 where we may not look.

    `groups` is /proc/PID/cgroup of its first process as this machine sees it.
    """
    with suppress(OSError):
        if pids := list_processes(groups):
            return sum_deleted_files(pids, os.stat(f"/proc/{pids[0]}/root").st_dev)
    return 0


def sum_deleted_files(pids: Iterable[int], device: int) -> int:
    """Return the size of the deleted files of a device that processes have open or mapped, each file once."""
    sizes: dict[int, int] = {}
    paths = (path for pid in pids for path in _list_open_files(pid))
    for path, _ in zip(paths, range(MOST_FILES), strict=False):
        with suppress(OSError):
            status = os.stat(path)
            if status.st_dev == device and not status.st_nlink and stat.S_ISREG(status.st_mode):
                sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _list_open_files(pid: int) -> Iterator[str]:
    """Yield the files that a process has open, and those that were deleted and that it has mapped."""
    folder = f"/proc/{pid}"
    with suppress(OSError):
        yield from (entry.path for entry in os.scandir(f"{folder}/fd"))
    with suppress(OSError):
        text = Path(f"{folder}/maps").read_text(errors="replace")
        yield from (f"{folder}/map_files/{_map_name(match[1])}" for match in _DELETED_MAPPING.finditer(text))


def _map_name(addresses: str) -> str:
    """Return the name of a mapping in `map_files`, which has no leading zeros.

    >>> _map_name("00400000-00452000")
    '400000-452000'
    """
    return "-".join(f"{int(part, 16):x}" for part in addresses.split("-"))
