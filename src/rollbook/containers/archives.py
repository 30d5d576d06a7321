"""Archives of files on their way into a container and out of it.

Code inside a container made what comes out: nothing in it may lead anywhere on this machine.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

MAX_STEPS = 128
"""How many parts of a path are followed: an archive may have many links, each in a circle."""

MAX_LEVELS, MAX_NAME_BYTES = 200, 2048
"""Programs of this machine that walk through folders, ours too, fail or become slow where those are deeper."""

MACHINE_ERRORS = frozenset(
    {
        errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EACCES, errno.EPERM,
        errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLINK, errno.ETIMEDOUT,
    }
)  # fmt: skip
"""Errors of this machine's disk, memory and limits: names and kinds of files that code inside made cause others."""


def is_machine_error(error: Exception) -> bool:
    """Whether files could not be copied because of this machine, and not because of what code inside made."""
    return isinstance(error, OSError) and error.errno in MACHINE_ERRORS


@contextmanager
def open_archive(file: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """Write an archive that has nothing behind its end, and go back to its beginning.

    Python appends zeros up to a multiple of 10,240 bytes. `podman cp` stops reading at the end, and fails if the zeros
    are more than it reads at once.
    """
    with tarfile.open(fileobj=file, mode="w") as tar:
        yield tar
        size = tar.offset + 2 * tarfile.BLOCKSIZE
    file.truncate(size)
    file.seek(0)


def unpack(file: IO[bytes], target: Path, source: str, max_bytes: int) -> list[str]:
    """Unpack the files and folders of an archive of `source`, a path inside; return the names that are left out.

    A link to a regular file of the same archive becomes a copy of that file. Other links, devices, pipes and what is
    too deep are left out. ValueError if the copies make it larger than `max_bytes`, or a name leads out of the target.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        entries = {posixpath.normpath(entry.name): entry for entry in tar}
        chosen = [(entry, _choose(entry, entries, source)) for entry in entries.values()]
        if sum(content.size for _, content in chosen if content) > max_bytes:
            raise ValueError(f"{source} is larger than {max_bytes} bytes: its links are copied as files")
        root = str(target.resolve())
        folders = {root}
        for entry, content in chosen:
            if content:
                _extract(tar, entry, content, root, folders)
    return [entry.name for entry, content in chosen if not content]


def is_too_deep(name: str) -> bool:
    """Whether a name of an archive has so many parts, or is so long, that it is left out.

    >>> is_too_deep("app/" + "a/" * 199), is_too_deep("app/" + "a/" * 200)
    (False, True)
    """
    name = posixpath.normpath(name)
    return name.count("/") >= MAX_LEVELS or len(os.fsencode(name)) > MAX_NAME_BYTES


def _choose(entry: tarfile.TarInfo, entries: dict[str, tarfile.TarInfo], source: str) -> tarfile.TarInfo | None:
    """Return the entry whose content another one gets; None if it is left out."""
    if is_too_deep(entry.name):
        return None
    if entry.isreg() or entry.isdir():
        return entry
    if not entry.issym() and not entry.islnk():
        return None
    found = entries.get(_resolve(posixpath.normpath(entry.name), entries, source))
    return found if found and found.isreg() else None


def _resolve(name: str, entries: dict[str, tarfile.TarInfo], source: str) -> str:
    """Return where a name leads in the archive, through links; nothing if that is outside of it, or in a circle."""
    place, left = "", name
    for _ in range(MAX_STEPS):
        part, _, left = left.partition("/")
        place = posixpath.normpath(posixpath.join(place, part))
        entry = entries.get(place)
        if entry and entry.islnk():
            place, left = "", f"{entry.linkname}/{left}"
        elif entry and entry.issym():
            place = "" if entry.linkname.startswith("/") else posixpath.dirname(place)
            left = f"{_find_inside(entry.linkname, source)}/{left}"
        elif not left:
            return place
    return ""


def _find_inside(linkname: str, source: str) -> str:
    """Return the target of a link as a name of the archive, which begins with the last part of the source's path.

    >>> _find_inside("/app/a", "/app"), _find_inside("../a", "/app"), _find_inside("/etc/passwd", "/app")
    ('app/a', '../a', '..')
    """
    if not linkname.startswith("/"):
        return linkname
    source = source.rstrip("/")
    return f"{posixpath.basename(source)}{linkname.removeprefix(source)}" if linkname.startswith(f"{source}/") else ".."


def _extract(
    tar: tarfile.TarFile, entry: tarfile.TarInfo, content: tarfile.TarInfo, target: str, folders: set[str]
) -> None:
    """Make one file or folder; `folders` are known to be folders and no links.

    `TarFile.extract` looks at every folder on the way again for each file, which takes minutes for a deep archive.
    """
    name = posixpath.normpath(entry.name.lstrip("/"))
    if ".." in name.split("/"):
        raise ValueError(f"{entry.name} leads out of the archive")
    place = posixpath.normpath(posixpath.join(target, name))
    # We must be able to read and remove it. Nobody may become another user by it.
    mode = (content.mode & 0o777) | (0o700 if content.isdir() else 0o600)
    if content.isdir():
        _make_folders(place, folders)
        os.chmod(place, mode)
        return
    _make_folders(posixpath.dirname(place), folders)
    source = tar.extractfile(content)
    assert source
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        shutil.copyfileobj(source, file)
        os.fchmod(descriptor, mode)


def _make_folders(place: str, folders: set[str]) -> None:
    """Make a folder and those that it is in; NotADirectoryError if something else, such as a link, is in the way."""
    missing = []
    while place not in folders:
        missing.append(place)
        place = posixpath.dirname(place)
    for each in reversed(missing):
        try:
            os.mkdir(each)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(each).st_mode):
                raise NotADirectoryError(f"{each} is no folder") from None
        folders.add(each)
