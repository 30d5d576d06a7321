"""Files that are whole or absent: written aside, fsynced, then put in place."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollbook.errors import BookUnwritable

REFUSALS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO})


@contextmanager
def writing(run: Path) -> Iterator[None]:
    """What the disk refuses inside is one line with a way out, wherever it came up."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        raise BookUnwritable(f"{run} cannot be written ({error.strerror}): make room, then resume") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_aside(path: Path, data: bytes) -> Path:
    """Write a complete, fsynced temporary file beside `path` and give its name."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    return aside


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` by a file with this content, at once and durably."""
    os.replace(write_aside(path, data), path)
    sync_folder(path.parent)


def write_new(path: Path, data: bytes) -> bool:
    """Create `path` with this content; False if it was there already. Never shows a partial file."""
    aside = write_aside(path, data)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(aside)
    sync_folder(path.parent)
    return True


def replace_quickly(path: Path, data: bytes) -> None:
    """Replace `path` at once but not durably: for heartbeats, which are worthless after a power cut."""
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(data)
    os.replace(aside, path)
