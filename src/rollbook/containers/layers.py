"""The layer with a container's own files, as the overlay file system of this machine keeps it.

It is read directly, and not by `podman diff`, which fails where a folder took the place of a file, and leaves out
folders that got their old time back.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

OPAQUE = "trusted.overlay.opaque"
"""The mark of a folder that hides what the layers below have in its place."""


def list_layer_changes(data: Mapping[str, str]) -> dict[str, str]:
    """Return A (added), C (changed) or D (deleted) by path; `data` is what the runtime says of the layers."""
    lowers = [each for each in data.get("LowerDir", "").split(":") if each]
    changes = {}
    folders = [("", lowers)]
    while folders:
        inner, below = folders.pop()
        for name, status in _list_folder(data["UpperDir"] + inner):
            path = f"{inner}/{name}"
            shown = path.encode(errors="surrogateescape").decode(errors="replace")
            changes[shown] = "D" if _is_whiteout(status) else "C" if _exists(path, below) else "A"
            if stat.S_ISDIR(status.st_mode):
                folders.append((path, list(_find_folders(path, below))))
    return dict(sorted(changes.items()))


def is_replaced_folder(path: str) -> bool:
    """Whether a path of the layer is something else than the folder of the image: a file, a link, or a new folder."""
    with suppress(OSError):
        return not stat.S_ISDIR(os.lstat(path).st_mode) or _is_opaque(path)
    return False


def is_replaced_file(path: str) -> bool:
    """Whether a path of the layer is something else than a regular file."""
    with suppress(OSError):
        status = os.lstat(path)
        return not stat.S_ISREG(status.st_mode) and not _is_whiteout(status)
    return False


def _list_folder(path: str) -> list[tuple[str, os.stat_result]]:
    """Return what a folder has; nothing of one whose path is too long to be read."""
    with suppress(OSError), os.scandir(path) as entries:
        return [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    return []


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _exists(path: str, layers: Sequence[str]) -> bool:
    for layer in layers:
        with suppress(OSError):
            return not _is_whiteout(os.lstat(layer + path))
    return False


def _find_folders(path: str, layers: Sequence[str]) -> Iterator[str]:
    """Yield the layers whose folder at a path is visible."""
    for layer in layers:
        try:
            status = os.lstat(layer + path)
        except OSError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            return
        yield layer
        if _is_opaque(layer + path):
            return


def _is_opaque(path: str) -> bool:
    with suppress(OSError):
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    return False


def remove_conflict(upper: str, path: str, *, is_folder: bool) -> None:
    """Remove what is at a path of the layer if it is no folder and should be one, or the other way round.

    A folder in place of something else is empty: what the image has there was removed. A path that leads through a
    link is left alone, for it could lead out of the layer.
    """
    *parents, name = path.strip("/").split("/")
    folder = upper
    for parent in parents:
        folder = f"{folder}/{parent}"
        if not _is_folder(folder):
            return
    place = f"{folder}/{name}"
    if not os.path.lexists(place) or _is_folder(place) == is_folder or _is_whiteout(os.lstat(place)):
        return
    if not is_folder:
        shutil.rmtree(place)
        return
    os.unlink(place)
    os.mkdir(place, 0o755)
    os.setxattr(place, OPAQUE, b"y")
    os.chown(place, os.stat(folder).st_uid, os.stat(folder).st_gid)


def _is_folder(path: str) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(path).st_mode)
    return False


async def measure_folders(folders: Sequence[str]) -> int:
    """Return how many bytes of the disk folders use: by `du`, which a tree of any size does not make us wait for."""
    du = await asyncio.create_subprocess_exec(
        *("du", "--summarize", "--total", "--block-size=1", "--", *folders),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # files vanish meanwhile
    )
    try:
        lines = (await du.communicate())[0].splitlines()
    finally:
        if du.returncode is None:
            du.kill()
    return int(lines[-1].split()[0]) if lines else 0
