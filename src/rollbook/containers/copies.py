"""Copy files out of containers by the runtime, explain why that failed, and pack what goes in."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from rollbook.containers.archives import open_archive
from rollbook.containers.runtime import Runtime, kill_client, summarize_error
from rollbook.errors import ContainerError

ODD_ATTRIBUTE = "invalid PAX record"
"""What a runtime reports of a file with an extended attribute that it cannot put into an archive."""

COPY_FAULTS = (
    "no space left", "disk quota exceeded", "input/output error", "read-only file system", "stale file handle",
    "too many open files", "cannot allocate memory", "resource temporarily unavailable", "closed pipe",
    "cannot connect to", "connection refused", "i/o timeout",
)  # fmt: skip
"""How the message of a runtime ends if this machine or its engine failed, or a helper of it was killed. Before that it
may name files, whose names code inside has chosen."""


class OddAttributeError(FileNotFoundError):
    """A runtime copies nothing because of the name of an extended attribute."""


async def copy_out(runtime: Runtime, name: str, source: str, file: IO[bytes], max_bytes: int) -> None:
    """Copy a file or folder of a container into an archive.

    FileNotFoundError if it cannot be copied because of what it is; ValueError if it is larger than `max_bytes`.
    """
    process = await asyncio.create_subprocess_exec(
        runtime.name, "cp", f"{name}:{source}", "-", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout
    assert process.stderr
    try:
        size = 0
        while data := await process.stdout.read(1 << 18):
            size += len(data)
            if size > max_bytes:
                raise ValueError(f"{source} is larger than {max_bytes} bytes")
            file.write(data)
        errors = (await process.stderr.read()).decode(errors="replace")
        if code := await process.wait():
            raise await _explain_copy(runtime, name, source, code, errors)
    finally:
        if process.returncode is None:
            await asyncio.shield(_end_copy(runtime, name, process))


async def _end_copy(runtime: Runtime, name: str, process: asyncio.subprocess.Process) -> None:
    """End a copy that is late or too large."""
    await kill_client(process)
    await runtime.release_files(name)


async def _explain_copy(runtime: Runtime, name: str, source: str, code: int, errors: str) -> Exception:
    """Return why a file was not copied: it is missing, a link in a circle or the like, or this machine failed."""
    if ODD_ATTRIBUTE in errors:
        return OddAttributeError(f'{source} cannot be copied: an extended attribute in it has "=" in its name')
    why, said = summarize_error(errors), errors.lower()
    failed = code < 0 or is_copy_fault(said)
    missing = "could not be found" in said or "could not find" in said
    if not failed and (missing or await _exists(runtime, name)):
        return FileNotFoundError(f"{source} cannot be copied: {why}")
    return ContainerError(f"{source} cannot be copied: {why}")


async def _exists(runtime: Runtime, name: str) -> bool:
    return (await runtime.call("container", "inspect", "--format", "{{.Id}}", name)).code == 0


def is_copy_fault(errors: str) -> bool:
    """Return whether this machine or its engine failed, by what the runtime said.

    >>> is_copy_fault('"/app" could not be found on container c: error decoding response from copier subprocess: EOF')
    True
    >>> is_copy_fault('"/app/no space left" could not be found on container c: no such file or directory')
    False
    """
    end = errors.lower().rstrip().rpartition(": ")[2]
    return end.split()[-1:] == ["eof"] or any(fault in end for fault in COPY_FAULTS)


def pack_folders(paths: Iterable[str]) -> bytes:
    """Return an archive with empty folders."""
    archive = io.BytesIO()
    with open_archive(archive) as tar:
        for path in paths:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return archive.getvalue()


def pack(source: Path, name: str, file: IO[bytes]) -> None:
    with open_archive(file) as tar:
        tar.add(source, arcname=name if source.is_file() else ".", filter=_own_by_root)


def _own_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
