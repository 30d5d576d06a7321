"""The sandbox: a few zygotes kept ready, each run in a fresh child of one of them."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.result import Result
from rollbook.sandbox.slot import SandboxError as SandboxError
from rollbook.sandbox.slot import Slot

FIRST_UID = 61_000
WAIT_S = 300.0


class Sandbox:
    """Runs untrusted Python. Use as a context, async or plain; `run` for the one, `run_sync` for the other."""

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        packages: Sequence[str] = (),
        size: int | None = None,
    ) -> None:
        self.limits = limits
        self._packages = list(packages)
        self._size = size or os.cpu_count() or 1
        self._free: queue.Queue[Slot | None] = queue.Queue()
        self._threads: ThreadPoolExecutor | None = None
        self._slots: set[Slot] = set()

    def __enter__(self) -> Sandbox:
        self._threads = ThreadPoolExecutor(self._size, "sandbox")
        try:
            self._threads.submit(self._add_slot).result()
        except BaseException:
            self.close()
            raise
        for _ in range(self._size - 1):
            self._free.put(None)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Sandbox:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End every zygote and all that runs in them."""
        for slot in list(self._slots):
            slot.close()
        self._slots.clear()
        if self._threads:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None

    def _add_slot(self) -> Slot:
        slot = Slot(configuration(self._packages, FIRST_UID + len(self._slots)), base_python())
        self._slots.add(slot)
        self._free.put(slot)
        return slot

    @property
    def isolation(self) -> tuple[str, ...]:
        """Which walls are really in force."""
        return next(iter(self._slots)).isolation if self._slots else ()

    async def run(
        self,
        code: str,
        stdin: str | bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> Result:
        """Run code in a fresh child."""
        if self._threads is None:
            raise SandboxError("the sandbox is not open: use it as a context")
        call = asyncio.get_running_loop().run_in_executor(self._threads, self._run, code, stdin, files or {}, limits)
        return await call

    def run_sync(
        self,
        code: str,
        stdin: str | bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> Result:
        """The same, for code that is not async."""
        if self._threads is None:
            raise SandboxError("the sandbox is not open: use it as a context")
        return self._threads.submit(self._run, code, stdin, files or {}, limits).result(WAIT_S)

    def _run(self, code: str, stdin: str | bytes, files: Mapping[str, bytes], limits: Limits | None) -> Result:
        check_names(files)
        slot = self._free.get(timeout=WAIT_S)
        if slot is None:
            self._add_slot()
            slot = self._free.get(timeout=WAIT_S)
            assert slot
        try:
            data = stdin.encode() if isinstance(stdin, str) else stdin
            result = slot.run(code, data, files, limits or self.limits)
        except BaseException:
            self._slots.discard(slot)
            slot.close()
            self._free.put(None)
            raise
        self._free.put(slot)
        return result


def check_names(files: Mapping[str, bytes]) -> None:
    """A run's files lie in its own folder."""
    for name in files:
        if name.startswith("/") or not name or ".." in name.split("/") or "\0" in name:
            raise UsageError(f"file name {name!r}: give a relative one that stays in the folder")


def base_python() -> str:
    """The interpreter itself: a virtual environment's link to it would lead out of the walls."""
    return os.path.realpath(sys.executable)


def configuration(packages: list[str], uid: int) -> dict[str, JSON]:
    """What a zygote is told about the world it may show."""
    paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}) if packages else []
    return {
        "mode": "root" if os.geteuid() == 0 else "user",
        "uid": uid,
        "packages": packages,
        "paths": paths,
        "places": places(paths),
        "hidden": [folder for folder in installed() if folder not in paths],
    }


def places(extra: list[str]) -> list[str]:
    """The folders that hold the interpreter, its libraries and the chosen packages; nothing inside another."""
    found = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *extra, *library_folders()}
    found |= {link for link in ("/lib", "/lib64", "/usr/lib64") if os.path.islink(link)}
    real = {path for path in found if os.path.exists(path)}
    return sorted(p for p in real if not any(p != q and p.startswith(f"{q}/") for q in real))


def installed() -> list[str]:
    """Where packages lie that nobody chose: inside the interpreter's own folders they are hidden."""
    stdlib = sysconfig.get_path("stdlib")
    return [os.path.join(stdlib, name) for name in ("site-packages", "dist-packages")]


def library_folders() -> set[str]:
    """Where the shared libraries lie that this interpreter has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {os.path.dirname(line.split()[-1]) for line in lines if ".so" in line}
