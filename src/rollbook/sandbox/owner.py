"""Names that tell whose a thing is, so that what a killed process has left can be found and cleared away."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FOLDERS_MOST = 10_000
_NAME = re.compile(r"rollbook-(\d+)-(\d+)-(\d+)-").match


def prefix() -> str:
    """The beginning of a name that only this process gives: its pid namespace, its number in it, when it began."""
    pid = os.getpid()
    return f"rollbook-{_namespace()}-{pid}-{_start(pid)}-"


def left_behind(folder: Path) -> Iterator[Path]:
    """What processes have left in a folder that are dead; of those in other pid namespaces nobody can tell."""
    with suppress(OSError):
        for name in os.listdir(folder):
            found = _NAME(name)
            if found and int(found[1]) == _namespace() and _start(int(found[2])) != int(found[3]):
                yield folder / name


def clear_folders(folder: Path) -> None:
    """Remove the temporary folders of the dead."""
    for path in left_behind(folder):
        shutil.rmtree(path, ignore_errors=True)


def clear_groups(point: Path) -> None:
    """Remove the control groups of the dead, wherever they lie below a place; where guests still die, not yet."""
    folders = [point]
    for folder in folders:
        for path in left_behind(folder):
            with suppress(OSError):
                path.rmdir()
        if len(folders) < FOLDERS_MOST:
            folders += _folders_in(folder)


def _folders_in(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False) and not _NAME(entry.name)]
    return []


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0
