"""Count what folders use on the disk: by `du`, and where that is late by a walk that never goes back up.

    python -P -m rollbook.containers.disk_use SECONDS FOLDER...

`du` goes from a folder back to the one above it by "..". If they are below a mount of a folder, as the layers of podman
and docker are, the kernel then follows all folders up to the mount, and n nested folders cost n * n steps. Code inside
makes 60,000 of them in seconds, and `du` took 8 minutes for these on a machine with other work.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from rollbook.containers.runtime import kill_client
from rollbook.processes import module_argv

DU = ("du", "--summarize", "--total", "--block-size=1", "--")
DU_S, WALK_S, START_S = 10.0, 120.0, 20.0
DU_FILES = ("du", "--summarize", "--total", "--inodes", "--")
BLOCK_BYTES = 512
FILE_BYTES = 1024
"""What every file and folder counts besides its content: a disk has room for a limited number of them."""

MAX_PATH_BYTES = 400
"""A folder that is further below an open one is opened itself. The kernel looks up every part of a path."""

UNCOUNTABLE = sys.maxsize
"""The size of a tree that needs more open files than there are: code inside made it like that."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


async def measure_folders(folders: Sequence[str]) -> int:
    """Return how many bytes of the disk folders and single files use: at least, where even the walk takes too long."""
    try:
        return await _count_by([*DU, *folders], DU_S) + FILE_BYTES * await _count_by([*DU_FILES, *folders], DU_S)
    except TimeoutError:
        walk = [*module_argv("rollbook.containers.disk_use"), str(WALK_S), *folders]
        return await _count_by(walk, WALK_S + START_S)


async def _count_by(command: Sequence[str], timeout_s: float) -> int:
    """Return the first number of the last line that a command prints; a process, so that no tree blocks the loop."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # files vanish meanwhile
    )
    try:
        async with asyncio.timeout(timeout_s):
            lines = (await process.communicate())[0].splitlines()
    finally:
        if process.returncode is None:
            await asyncio.shield(kill_client(process))
    return int(lines[-1].split()[0]) if lines else 0


def count_bytes(folders: Iterable[str], within_s: float = math.inf) -> int:
    """Return how many bytes of the disk folders and single files use, as far as they can be read in that time.

    A file with several names counts once.
    """
    seen: set[tuple[int, int]] = set()
    total, deadline = 0, time.monotonic() + within_s
    for status in _walk_all(folders):
        if time.monotonic() > deadline:
            break
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        total += status.st_blocks * BLOCK_BYTES + FILE_BYTES
    return total


def _walk_all(folders: Iterable[str]) -> Iterator[os.stat_result]:
    for folder in folders:
        with suppress(FileNotFoundError):
            yield (status := os.lstat(folder))
            if stat.S_ISDIR(status.st_mode):
                yield from _walk(os.open(folder, _FOLDER))


def _walk(top: int) -> Iterator[os.stat_result]:
    """Yield the status of everything in an open folder, and close that.

    A folder is opened by its path below an open one, so that no path becomes too long. An open one below which nothing
    is left to read is closed before the next is opened: a chain of folders needs three open files.
    """
    pending = [(top, ["."])]
    while pending:
        above, paths = pending[-1]
        path = paths.pop()
        folder, is_far = _open_folder(path, above), len(os.fsencode(path)) > MAX_PATH_BYTES
        if folder is not None and not is_far:
            for name, status in _read_folder(folder):
                yield status
                if stat.S_ISDIR(status.st_mode):
                    paths.append(f"{path}/{name}")
        if not paths:
            os.close(above)
            pending.pop()
        if folder is not None and is_far:
            pending.append((folder, ["."]))


def _open_folder(path: str, above: int) -> int | None:
    """Return an open folder; None if it is gone meanwhile."""
    try:
        return os.open(path, _FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise
        return None


def _read_folder(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names in an open folder and what they are, and close it."""
    with suppress(OSError):  # they vanish meanwhile
        try:
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):
                    yield name, os.lstat(name, dir_fd=folder)
        finally:
            os.close(folder)


def main() -> None:
    """Print the size of the folders that are named."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        total = count_bytes(sys.argv[2:], float(sys.argv[1]))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        total = UNCOUNTABLE
    sys.stdout.write(f"{total}\n")


if __name__ == "__main__":
    main()
