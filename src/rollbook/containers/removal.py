"""Empty the folders of a container before the runtime removes them, where code inside made them too deep for that.

podman opens a file for each level of a folder that it removes. If it has no more files, it stops half-way, and then
every later command of podman fails, also those of other containers. docker fails where the path becomes too long.
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
import time
from contextlib import suppress

MAX_DEPTH = 200
MAX_FOLDERS = 200_000
"""A folder with more is taken for a deep one: to look at everything would take longer than to remove it."""

ASIDE = "rollbook-"
"""The names of our folders next to a layer begin with this."""

END_S = 10.0


def kill_first_process(pid: int, container: str) -> None:
    """Kill the first process of a container, and with it all others; wait for their end.

    Nothing happens if the process is another's: the container may have ended since its process id was read.
    """
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                if container not in file.read():
                    return
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], END_S)
        finally:
            os.close(descriptor)


def is_deep(folder: str) -> bool:
    """Return whether a folder has more levels, or more folders, than one that can be removed as usual."""
    pending, count = [(folder, 0)], 0
    while pending:
        path, depth = pending.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_FOLDERS:
            return True
        try:
            pending += [(each, depth + 1) for each in _list_inner(path)]
        except FileNotFoundError:
            continue
        except OSError:  # the path is too long
            return True
    return False


def _list_inner(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def empty_deep_folder(folder: str, timeout_s: float) -> bool:
    """Remove everything in a folder if it is deep, and what is left of earlier tries; return whether that is done.

    An inner folder is moved next to the outer one before it is emptied, so that the depth does not matter.
    """
    beside = os.path.dirname(folder)
    deep = [each for each in (folder, *_list_aside(beside)) if is_deep(each)]
    if not deep:
        return True
    deadline = time.monotonic() + timeout_s
    aside = tempfile.mkdtemp(prefix=f"{ASIDE}removed-", dir=beside)
    return all(_empty(each, aside, deadline) for each in deep)


def _list_aside(folder: str) -> list[str]:
    with suppress(OSError):
        return [path for path in _list_inner(folder) if os.path.basename(path).startswith(ASIDE)]
    return []


def _empty(folder: str, aside: str, deadline: float) -> bool:
    pending, number = [folder], 0
    while pending:
        if time.monotonic() > deadline:
            return False
        path = pending.pop()
        for name in _take_apart(path, aside, number):
            pending.append(name)
            number += 1
        if path != folder:
            os.rmdir(path)
    return True


def _take_apart(folder: str, aside: str, number: int) -> list[str]:
    """Remove the files of a folder, and move its folders away; return where they are now."""
    moved: list[str] = []
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(descriptor) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_folder in found:
            if is_folder:
                moved.append(f"{aside}/{number + len(moved)}")
                os.rename(name, moved[-1], src_dir_fd=descriptor)
            else:
                os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    return moved
