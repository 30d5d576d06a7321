"""Files that are complete or absent (written to a temporary file, fsynced, then renamed), and the lock of a run."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollbook.errors import BookError, BookUnwritable

FULL_DISK_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,  # a limit on the size of files, such as `ulimit -f`
    }
)
DISK_ERRORS = FULL_DISK_ERRORS | frozenset(
    {
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.ESTALE,  # a network file system whose server was restarted, or whose folder was replaced
    }
)
NO_LOCK_ERRORS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
LOCK_TIMEOUT_S = 30.0


@contextmanager
def explain_disk_errors(run: Path) -> Iterator[None]:
    """Turn a full or read-only disk inside the block into a one-line error with a way out."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise make_unwritable(run, error) from error


def make_unwritable(path: Path, error: OSError) -> BookUnwritable:
    """Return the error for a run directory, or a folder in it, that cannot be written."""
    advice = advise_on_disk(error) or "check its path"
    return BookUnwritable(f"{path} cannot be written ({error.strerror or error}): {advice}, then resume")


def advise_on_disk(error: OSError) -> str:
    """Return what a user can do about a write that failed; empty if only another path helps.

    >>> advise_on_disk(OSError(errno.ENOSPC, "")), advise_on_disk(OSError(errno.EACCES, ""))
    ('make room', 'make it writable for this user (owner and mode of the folder)')
    """
    if error.errno in (errno.EACCES, errno.EPERM):
        return "make it writable for this user (owner and mode of the folder)"
    if error.errno == errno.EROFS:
        return "mount it for writing"
    if error.errno in (errno.EIO, errno.ESTALE):
        return "check the disk or its server"
    if error.errno in FULL_DISK_ERRORS:
        return "make room"
    return ""


@contextmanager
def lock_run(run: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Lock a run against other changes of its plan, in this process too; the lock ends with the process."""
    handle = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + timeout_s
    try:
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise BookError(f"{run}: another process has been changing its plan for {timeout_s:g} s: try again")
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCK_ERRORS:
            raise
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_temporary(path: Path, data: bytes) -> Path:
    """Write a complete, fsynced temporary file next to `path` and return its name; leave none behind on an error."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with _unlink_on_error(aside):
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
    return aside


@contextmanager
def _unlink_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by a file with this content, atomically and durably."""
    aside = write_temporary(path, data)
    with _unlink_on_error(aside):
        os.replace(aside, path)
    sync_folder(path.parent)


def write_new(path: Path, data: bytes) -> bool:
    """Create `path` with this content, durably; return False if it exists. A partial file is never visible."""
    created = link_new(path, data)
    if created:
        sync_folder(path.parent)
    return created


def link_new(path: Path, data: bytes) -> bool:
    """Create `path` with this content; return False if it exists. Its name is not durable yet."""
    aside = write_temporary(path, data)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(aside)
    return True


def overwrite_in_place(path: Path, data: bytes) -> bool:
    """Overwrite the content of `path` in place; return False if there is no such file.

    A shorter text is padded with blanks. A concurrent reader may see half of each.
    """
    try:
        handle = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return False
    try:
        os.pwrite(handle, data.ljust(os.lseek(handle, 0, os.SEEK_END)), 0)
    finally:
        os.close(handle)
    return True


def replace_without_sync(path: Path, data: bytes) -> None:
    """Replace `path` atomically but not durably: for heartbeats, which are worthless after a power cut."""
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(data)
    os.replace(aside, path)
