"""Unpack archives of files that code inside a container made: nothing in them may lead anywhere on this machine."""

from __future__ import annotations

import posixpath
import tarfile
from pathlib import Path
from typing import IO

MAX_STEPS = 128
"""How many parts of a path are followed: an archive may have many links, each in a circle."""


def unpack(file: IO[bytes], target: Path, source: str, max_bytes: int) -> list[str]:
    """Unpack the files and folders of an archive of `source`, a path inside; return the names that are left out.

    A link to a regular file of the same archive becomes a copy of that file. Other links, devices and pipes are left
    out. ValueError if the copies make it larger than `max_bytes`.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        entries = {posixpath.normpath(entry.name): entry for entry in tar}
        chosen = [(entry, _choose(entry, entries, source)) for entry in entries.values()]
        if sum(content.size for _, content in chosen if content) > max_bytes:
            raise ValueError(f"{source} is larger than {max_bytes} bytes: its links are copied as files")
        for entry, content in chosen:
            if content:
                _extract(tar, entry, content, target)
    return [entry.name for entry, content in chosen if not content]


def _choose(entry: tarfile.TarInfo, entries: dict[str, tarfile.TarInfo], source: str) -> tarfile.TarInfo | None:
    """Return the entry whose content another one gets; None if it is left out."""
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


def _extract(tar: tarfile.TarFile, entry: tarfile.TarInfo, content: tarfile.TarInfo, target: Path) -> None:
    tar.extract(content.replace(name=entry.name, deep=False), target, set_attrs=False, filter="data")
    # We must be able to read and remove it. Nobody may become another user by it.
    mode = (content.mode & 0o777) | (0o700 if content.isdir() else 0o600)
    (target / entry.name.lstrip("/")).chmod(mode)
