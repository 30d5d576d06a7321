"""The containers of one process on this node: started here, removed at the end, and after a crash by the guard."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from rollbook.containers.container import Container
from rollbook.containers.handle import ContainerHandle
from rollbook.containers.images import ImageBuild, ensure_build, ensure_image, reap_builds
from rollbook.containers.owners import Owner, delete_own_states, reap_leftovers, remove_own_folder
from rollbook.containers.runtime import Runtime, find_runtime
from rollbook.errors import ContainerError, Drained
from rollbook.processes import is_being_cancelled, module_argv

_LOGGER = logging.getLogger("rollbook")
LEAST_FREE_BYTES = 64 << 20
STARTS_AT_ONCE = 4
"""A runtime that starts many containers at once is no faster, and its lock makes each of them late."""


class ContainerHost:
    """Starts containers, and owns all of them. The caller that started one removes it; `close` removes what is left."""

    def __init__(self, run: Path | None = None, runtime: Runtime | None = None) -> None:
        self.runtime = runtime or find_runtime()
        self._owner, self._run = Owner.current(run), run
        self._handles: set[ContainerHandle] = set()
        self._images: set[str] = set()
        self._storage: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._preparing: set[asyncio.Task[Container]] = set()
        self._drained = False

    async def open(self) -> None:
        """Remove what dead owners left on this node, and start the guard; UsageError where limits would not hold."""
        await self.runtime.require_limits()
        self._guard = _start_guard(self.runtime.name, self._owner.label)
        try:
            await reap_builds(self.runtime)
            await reap_leftovers(self.runtime)
        except ContainerError as error:  # no reason not to begin
            _LOGGER.warning("%s; the next start tries this again", error)

    async def prepare(self, container: Container) -> Container:
        """Make sure that the image of a container is here: built, pulled or known from before; return it with that."""
        if container.build:
            image = await ensure_build(self.runtime, ImageBuild(container.build, container.build_timeout_s))
            self._images.add(image)
            return msgspec.structs.replace(container, image=image, build="")
        if container.image not in self._images:
            await ensure_image(self.runtime, container.image, container.build_timeout_s)
            self._images.add(container.image)
        return container

    async def start(self, container: Container, name: str = "") -> ContainerHandle:
        """Start a container. If that fails or is cancelled, nothing of it stays.

        `name` is that of the rollout which begins in it, and under which its artifacts are kept in the run directory.
        Drained if such a rollout still waits for its image when the worker is drained.
        """
        container = await (self._prepare_or_give_up(container) if name else self.prepare(container))
        artifacts = self._choose_folder(name) if self._run and name else None
        handle = ContainerHandle(self.runtime, container, self._owner, artifacts)
        handle.host = self
        self._handles.add(handle)
        try:
            async with self._starts:
                await handle.start()
        except BaseException:
            self._images.discard(container.image)  # it may be the image that is gone
            await asyncio.shield(self.remove(handle))
            raise
        return handle

    def stop_waiting(self) -> None:
        """Let rollouts that wait for their image, now or later, give up: nothing of them has been done yet."""
        self._drained = True
        for task in self._preparing:
            task.cancel()

    async def _prepare_or_give_up(self, container: Container) -> Container:
        if self._drained:
            raise Drained("its image was not asked for")
        task = asyncio.create_task(self.prepare(container), name="image")
        self._preparing.add(task)
        try:
            return await task  # our own cancellation cancels it too, and waits for its end
        except asyncio.CancelledError:
            if self._drained and task.cancelled() and not is_being_cancelled():
                raise Drained("its image was not ready") from None
            raise
        finally:
            self._preparing.discard(task)

    def _choose_folder(self, name: str) -> Path:
        """Return a folder of the run directory that no other attempt has, of whichever worker."""
        assert self._run
        return self._run / "artifacts" / f"{quote(name, safe='')}-{secrets.token_hex(4)}"

    async def require_disk_space(self) -> None:
        """Raise a ContainerError if the disk of this machine is full: what an agent then could not do is not its fault.

        Inside, a full disk looks like any error of a command, and the tests would score it.
        """
        if self._storage is None:
            self._storage = await self.runtime.find_storage()
        try:
            free = shutil.disk_usage(self._storage).free
        except OSError:
            return  # the runtime is a daemon of another machine
        if free < LEAST_FREE_BYTES:
            raise ContainerError(f"the disk of this machine is full: {free >> 20} MB are free in {self._storage}")

    async def remove(self, handle: ContainerHandle) -> None:
        """Remove a container; one that resists stays ours: `close`, the guard or a later start tries again."""
        try:
            await handle.remove()
        except ContainerError as error:
            _LOGGER.warning("%s; this is tried again later", error)
        else:
            self._handles.discard(handle)

    async def close_containers(self) -> None:
        """Remove every container that is left."""
        await asyncio.gather(*(self.remove(handle) for handle in list(self._handles)), return_exceptions=True)

    async def close(self) -> None:
        """Remove every container that is left, and let the guard go; if something resists, the guard stays for it."""
        await self.close_containers()
        remove_own_folder()
        with suppress(ContainerError):
            await delete_own_states(self.runtime)
        guard = self._guard
        if guard is None or guard.stdin is None or self._handles:
            return
        self._guard = None
        guard.kill()
        guard.stdin.close()
        await asyncio.to_thread(guard.wait)


def _start_guard(runtime: str, label: str) -> subprocess.Popen[bytes]:
    """Start the guard in a session of its own: a signal to our group must not end it."""
    argv = module_argv("rollbook.containers.guard", runtime)
    quiet = subprocess.DEVNULL
    guard = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
    assert guard.stdin
    guard.stdin.write(label.encode())
    guard.stdin.flush()
    return guard
