"""Images: pulled or built once per node, under a lock; a build is found again by the content of its folder."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from rollbook.containers.owners import Owner, is_dead
from rollbook.containers.runtime import KILL_S, Runtime, temporary_root, work_folder
from rollbook.errors import ContainerError, ImageError
from rollbook.processes import kill_by_variable

BUILD_LABEL = "rollbook.build"
LOCK_POLL_S = 0.2
LOCK_SUFFIX, RECORD_SUFFIX = ".lock", ".build"


class BuildRecord(msgspec.Struct):
    """A build that is running or was killed: the folder of its temporary files, its worker, and its containers.

    The folder is the build's own and is in the environment of its processes, which are found by it.
    """

    folder: str
    owner: str = ""
    containers: list[str] = []

    @property
    def is_orphaned(self) -> bool:
        """Whether the worker that started the build is dead, so that nobody keeps its deadline."""
        owner = Owner.from_label(self.owner)
        return owner is not None and is_dead(owner, Owner.current())


class ImageBuild(msgspec.Struct, frozen=True):
    """A folder with a Dockerfile that becomes an image; its name is the hash of what the folder holds."""

    folder: str
    timeout_s: float = 600.0

    @property
    def image(self) -> str:
        """The name of the image."""
        return f"localhost/rollbook/build:{hash_folder(Path(self.folder))[:32]}"


def hash_folder(folder: Path) -> str:
    """Return a hash of the names, kinds, modes and contents of everything in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        executable = bool(status.st_mode & stat.S_IXUSR)
        digest.update(
            f"{path.relative_to(folder)}\0{stat.S_IFMT(status.st_mode)}\0{executable}\0".encode(
                errors="surrogateescape"
            )
        )
        if path.is_symlink():
            digest.update(os.fsencode(os.readlink(path)))
        elif stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


async def ensure_image(runtime: Runtime, image: str, pull_timeout_s: float) -> None:
    """Make sure that this node has an image; it is pulled at most once at a time. ImageError if it cannot be had."""
    if await runtime.has_image(image):
        return
    async with hold_lock(image, pull_timeout_s):
        if await runtime.has_image(image):
            return
        output = await runtime.call("pull", "--quiet", image, timeout_s=pull_timeout_s)
    if output.code:
        raise ImageError(f"image {image} is not on this machine and cannot be pulled: {output.reason}")


async def ensure_build(runtime: Runtime, build: ImageBuild) -> str:
    """Build the image of a folder unless this node has it; return its name. ImageError if the build fails."""
    image = await asyncio.to_thread(lambda: build.image)
    if await runtime.has_image(image):
        return image
    async with hold_lock(image, build.timeout_s) as lock:
        if not await runtime.has_image(image):
            await _build(runtime, build, image, lock)
    return image


async def _build(runtime: Runtime, build: ImageBuild, image: str, lock: int) -> None:
    where = f"{build.folder}/Dockerfile"
    options = ["--tag", image, "--label", f"{BUILD_LABEL}={image.rpartition(':')[2]}", "--force-rm"]
    # Without cached layers nothing but the image stays behind; the image itself is the cache.
    options += ["--layers=false"] if runtime.name == "podman" else []
    async with _temporary_folder(runtime, image) as folder:
        try:
            # If this process is killed, the build holds the lock itself until somebody ends it.
            output = await runtime.call(
                *("build", *options, build.folder),
                timeout_s=build.timeout_s,
                env={"TMPDIR": str(folder)},
                inherited=[lock],
            )
        except ContainerError as error:
            raise ImageError(f"{where}: {error}") from None
    if output.code < 0 or "no space left" in output.stderr.lower():
        raise ContainerError(f"{where}: the build was killed" if output.code < 0 else f"{where}: {output.reason}")
    if output.code:
        raise ImageError(f"{where} cannot be built: {output.reason}")


@asynccontextmanager
async def _temporary_folder(runtime: Runtime, image: str) -> AsyncIterator[Path]:
    """Make the folder for temporary files of a build, and record what must be removed if the build is killed."""
    path = work_folder() / f"{_hash(image)}{RECORD_SUFFIX}"
    await _remove_build(runtime, path)
    folder = tempfile.mkdtemp(prefix="rollbook-build-", dir=temporary_root())
    record = BuildRecord(folder, Owner.current().label)
    _write_record(path, record)
    watcher = asyncio.create_task(_note_containers(runtime, record, path), name="build")
    try:
        yield Path(folder)
    finally:
        watcher.cancel()
        await asyncio.shield(_remove_build(runtime, path))


async def _note_containers(runtime: Runtime, record: BuildRecord, path: Path) -> None:
    """Record the containers of a build while their commands run; later nothing shows whose they are."""
    while True:
        known = sorted({*record.containers, *runtime.list_build_containers(Path(record.folder))})
        if known != record.containers:
            record.containers = known
            _write_record(path, record)
        await asyncio.sleep(LOCK_POLL_S)


def _write_record(path: Path, record: BuildRecord) -> None:
    """Write a record as a whole: a worker that is killed meanwhile leaves the one before."""
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(record))
    new.replace(path)


def _read_record(path: Path) -> BuildRecord | None:
    with suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=BuildRecord)
    return None


async def _remove_build(runtime: Runtime, path: Path) -> None:
    """Remove what a build left, whose lock we hold: nobody is building it any more."""
    if record := _read_record(path):
        folder = Path(record.folder)
        await runtime.remove_build(folder, [*record.containers, *runtime.list_build_containers(folder)])
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    path.unlink(missing_ok=True)


async def reap_builds(runtime: Runtime) -> int:
    """End the builds of this user whose worker was killed, and remove what they left; return how many there were."""
    found = 0
    for path in work_folder().glob(f"*{RECORD_SUFFIX}"):
        with path.with_suffix(LOCK_SUFFIX).open("w") as file:
            if await _take_over(file, path):
                await _remove_build(runtime, path)
                found += 1
    return found


async def _take_over(file: IO[str], path: Path) -> bool:
    """Take the lock of a build if its worker is dead; the build itself may still run and is ended."""
    deadline = time.monotonic() + KILL_S
    while not _try_to_lock(file):
        if not await _end_orphan(path) or time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOCK_POLL_S)
    return True


async def _end_orphan(path: Path) -> bool:
    """Kill the processes of a build whose worker is dead; return whether it is one."""
    record = _read_record(path)
    if record is None or not record.is_orphaned:
        return False
    await asyncio.to_thread(kill_by_variable, "TMPDIR", record.folder)
    return True


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


@asynccontextmanager
async def hold_lock(name: str, timeout_s: float) -> AsyncIterator[int]:
    """Hold the lock of an image on this node, and yield its open file; the kernel lets go of it when we die.

    If others hold it for too long, that is a ContainerError: it says nothing about the image. A build whose worker is
    dead does not count: it is ended, because nobody else may do so (the guard of its worker may be dead too).
    """
    path, deadline = work_folder() / f"{_hash(name)}{LOCK_SUFFIX}", time.monotonic() + timeout_s
    with path.open("w") as file:
        while not _try_to_lock(file):
            if time.monotonic() > deadline:
                why = f"others on this machine have been building or pulling it for {timeout_s:g} s"
                raise ContainerError(f"image {name}: {why}")
            await _end_orphan(path.with_suffix(RECORD_SUFFIX))
            await asyncio.sleep(LOCK_POLL_S)
        yield file.fileno()


def _try_to_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
