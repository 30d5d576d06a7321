"""Images: pulled or built once per node, under a lock; a build is found again by the content of its folder."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rollbook.containers.runtime import Runtime, work_folder
from rollbook.errors import ContainerError, ImageError

BUILD_LABEL = "rollbook.build"
LOCK_POLL_S = 0.2


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
        digest.update(f"{path.relative_to(folder)}\0{stat.S_IFMT(status.st_mode)}\0{executable}\0".encode())
        if path.is_symlink():
            digest.update(os.readlink(path).encode())
        elif stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


async def ensure_image(runtime: Runtime, image: str, pull_timeout_s: float) -> None:
    """Make sure that this node has an image; it is pulled at most once at a time. ImageError if it cannot be had."""
    if await runtime.has_image(image):
        return
    async with hold_lock(image):
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
    async with hold_lock(image):
        if not await runtime.has_image(image):
            await _build(runtime, build, image)
    return image


async def _build(runtime: Runtime, build: ImageBuild, image: str) -> None:
    where = f"{build.folder}/Dockerfile"
    options = ["--tag", image, "--label", f"{BUILD_LABEL}={image.rpartition(':')[2]}", "--force-rm"]
    # Without cached layers nothing but the image stays behind; the image itself is the cache.
    options += ["--layers=false"] if runtime.name == "podman" else []
    try:
        output = await runtime.call("build", *options, build.folder, timeout_s=build.timeout_s)
    except ContainerError as error:
        raise ImageError(f"{where}: {error}") from None
    if output.code:
        if "no space left" in output.stderr.lower():
            raise ContainerError(f"{where}: {output.reason}")
        raise ImageError(f"{where} cannot be built: {output.reason}")


@asynccontextmanager
async def hold_lock(name: str) -> AsyncIterator[None]:
    """Hold the lock of a name on this node; the kernel lets go of it when we die."""
    path = work_folder() / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_POLL_S)
        yield
