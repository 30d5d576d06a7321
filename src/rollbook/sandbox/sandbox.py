"""The sandbox: a few zygotes kept ready, each run in a fresh child of one of them."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from os import PathLike
from threading import BoundedSemaphore, Semaphore
from typing import Any, TypeVar

from rollbook.errors import UsageError
from rollbook.sandbox.bubblewrap import Bubblewrap
from rollbook.sandbox.errors import Full, Refused, SandboxError
from rollbook.sandbox.given import check_files, check_size, check_text, limits_of, stdin_of
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.nursery import Nursery
from rollbook.sandbox.persistent import Persistent
from rollbook.sandbox.places import base_python, configuration
from rollbook.sandbox.remote import Remote
from rollbook.sandbox.result import Result
from rollbook.sandbox.session import Session, State
from rollbook.sandbox.slot import Slot
from rollbook.sandbox.snapshot import Snapshot
from rollbook.sandbox.terms import Require, terms_of
from rollbook.sandbox.tiers import Tiers, prove
from rollbook.sandbox.twin import awaited, blocking, to_its_end
from rollbook.sandbox.uids import Uids

WAIT_S = 300.0
T = TypeVar("T")
SESSIONS, WAITING = 256, 10_000
HTTP = ("http://", "https://")
ADDRESS = "ROLLBOOK_SANDBOX"
"""The variable that names the provider where nobody else does: beside a worker, the address of a server."""


class Sandbox:
    """Runs untrusted Python. Use as a context, async or plain; `run` for the one, `run_sync` for the other.

    `size` runs go on at a time and `waiting` more may wait; whoever comes then gets a SandboxError at once, awaiting or
    not. `require="full"` refuses walls that are not complete; `allow_weaker` takes what there is without namespaces.
    Without a `provider` it is the one that ROLLBOOK_SANDBOX names, or the built-in one.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        packages: Sequence[str] = (),
        size: int | None = None,
        sessions: int = SESSIONS,
        provider: str | None = None,
        waiting: int = WAITING,
        require: Require | None = None,
        allow_weaker: bool | None = None,
    ) -> None:
        check_size(size)
        self.limits = limits_of(limits, limits)
        self._provider = check_provider(os.environ.get(ADDRESS, "built-in") if provider is None else provider)
        self.remote: Remote | None = None
        self.packages = tuple(packages)
        self._size = size or os.cpu_count() or 1
        self._uids = Uids()
        self._terms = terms_of(require, allow_weaker)
        self._tiers = Tiers(list(packages), self._uids, self._terms)
        self._waiting, self._places = waiting, Semaphore(self._size)
        self._room = BoundedSemaphore(self._size + waiting)
        self._free: queue.Queue[Slot | None] = queue.Queue()
        self._threads: ThreadPoolExecutor | None = None
        self._slots: set[Slot] = set()
        self._sessions = sessions
        self._nursery = Nursery(self._new_slot, sessions)

    def __enter__(self) -> Sandbox:
        self._threads = ThreadPoolExecutor(self._size, "sandbox")
        self._free = queue.Queue()
        self._nursery = Nursery(self._new_slot, self._sessions)
        try:
            self._threads.submit(self._start).result()
        except BaseException:
            self.close()
            raise
        for _ in range(self._size - 1):
            self._free.put(None)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Sandbox:
        try:
            return await to_its_end(self.__enter__)
        except asyncio.CancelledError:
            await to_its_end(self.close)
            raise

    async def __aexit__(self, *_: object) -> None:
        await to_its_end(self.close)

    def close(self) -> None:
        """End every zygote and all that runs in them."""
        self._nursery.kill()
        for slot in list(self._slots):
            slot.close()
        if self._threads:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        for slot in self._slots:  # one may have come up meanwhile
            slot.close()
        self._slots.clear()
        self._nursery.close()

    def _start(self) -> None:
        if self._provider.startswith(HTTP):
            self.remote = Remote(self._provider, self.packages)
            self._terms.check(self.remote.isolation)
        else:
            self._free.put(self._add_slot())

    def _new_slot(self) -> Slot:
        if self.remote:
            raise SandboxError("this is not to be had over HTTP: it needs a sandbox of this machine")
        if self._provider == "bubblewrap":
            bubblewrap = Bubblewrap(configuration(list(self.packages)), base_python())
            return prove(Slot(bubblewrap, self._uids, self._terms), self._terms)
        return self._tiers.slot()

    def _add_slot(self) -> Slot:
        slot = self._new_slot()
        self._slots.add(slot)
        return slot

    @property
    def isolation(self) -> tuple[str, ...]:
        """Which walls are really in force."""
        if self.remote:
            return self.remote.isolation
        slots = list(self._slots)  # threads of ours change it
        return slots[0].isolation if slots else ()

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            raise SandboxError("the sandbox is not open: use it as a context")
        return self._threads

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        if not self._room.acquire(blocking=False):
            raise Full(f"{self._waiting} runs wait already: await some first, or Sandbox(waiting=...)")
        try:
            future = self._pool().submit(work)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future

    def _run(
        self,
        code: str,
        stdin: str | bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> Result:
        """Run code in a fresh child."""
        check_text("code", code)
        data, allowed = stdin_of(stdin), limits_of(limits, self.limits)
        check_files(files or {}, allowed)
        if self.remote:
            return self.remote.run(code, data, files or {}, allowed)
        return self.use(lambda slot: slot.run(code, data, files or {}, allowed))

    def use(self, work: Callable[[Slot], T]) -> T:
        """Do something with a zygote that nobody else has meanwhile, in one of the pool's threads."""
        slot = self._free.get(timeout=WAIT_S)
        keep = False
        try:
            if slot and not slot.alive:
                self._drop(slot)
                slot = None
            slot = slot or self._add_slot()
            result = work(slot)
            keep = True
        except Refused:
            keep = True
            raise
        finally:
            self._free.put(slot if keep else None)
            if slot and not keep:
                self._drop(slot)
        return result

    def _drop(self, slot: Slot) -> None:
        self._slots.discard(slot)
        slot.close()

    run = awaited(_run)
    run_sync = blocking(_run)

    def session(
        self,
        snapshot: bool = False,
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
        folder: str | PathLike[str] | None = None,
    ) -> Session:
        """Turns that share their state, a context of its own. With `snapshot`, a turn that dies is rolled back.

        It begins with `files` in a folder of its own, or works in `folder`, one of the host's, to read and to write.
        """
        limits = limits_of(limits, self.limits)
        check_files(files or {}, limits)
        if files and folder is not None:
            raise UsageError("session: files lie in the session's own folder; give them or a folder of the host")
        if snapshot and limits.processes != 1:
            raise UsageError(f"limit processes={limits.processes}: a session that takes snapshots has 1")
        place = None if folder is None else os.fspath(folder)
        begin = partial(self._begin, limits, snapshot, dict(files or {}), place)
        return Session(self._nursery, self._pool(), limits, begin, self._places)

    def _begin(self, limits: Limits, snapshot: bool, files: dict[str, bytes], folder: str | None) -> State:
        if self.remote:
            if folder is not None:
                raise Refused(f"folder {folder}: a sandbox that is served elsewhere cannot mount it")
            return self.remote.session(limits, snapshot, files)
        kind = Snapshot if snapshot else Persistent
        slot = self._nursery.slot()
        try:
            return kind(slot, limits, files, folder)
        except SandboxError:
            if slot.alive:
                raise
        return kind(self._nursery.slot(), limits, files, folder)  # it died just now: another one, once


def check_provider(name: str) -> str:
    """The name of a provider, or the address of a sandbox that is served elsewhere."""
    if name in ("built-in", "bubblewrap") or name.startswith(HTTP):
        return name
    raise UsageError(f"provider {name!r}: there are built-in, bubblewrap and http://HOST:PORT/TOKEN")
