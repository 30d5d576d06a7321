"""Names that tell whose a thing is, so that what a killed process has left can be found and cleared away."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0
