"""Sandbox: a few zygotes kept ready; each run happens in a fresh child of one of them."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from os import PathLike
from threading import BoundedSemaphore, Semaphore
from typing import Any, TypeVar

from rollbook.errors import SandboxError, SandboxFull, SandboxUnsupported, UsageError
from rollbook.processes import run_to_completion
from rollbook.sandbox.backends.bubblewrap import BubblewrapProvider
from rollbook.sandbox.backends.remote import RemoteSandbox
from rollbook.sandbox.backends.zygote import ZygoteFactory
from rollbook.sandbox.isolation import Require, base_python, make_configuration, make_requirements
from rollbook.sandbox.launcher import GuestLauncher, UserIds, prove_isolation
from rollbook.sandbox.limits import Limits, check_files, check_size, check_text, choose_limits, encode_stdin
from rollbook.sandbox.results import Result
from rollbook.sandbox.session import Session, SessionPool, SessionState, async_method, blocking_method
from rollbook.sandbox.session_state import PersistentState, SnapshotState

WAIT_S = 300.0
T = TypeVar("T")
MAX_SESSIONS, MAX_WAITING_RUNS = 256, 10_000
HTTP_PREFIXES = ("http://", "https://")
PROVIDER_ENV = "ROLLBOOK_SANDBOX"
"""The variable that names the default provider: for a worker next to a sandbox server, the server's address."""


class Sandbox:
    """Runs untrusted Python. Use as a context, async (`run`) or plain (`run_sync`).

    `size` runs proceed at a time and `waiting` more may wait; further ones raise SandboxError at once, awaited or not.
    `require="full"` refuses incomplete isolation; `allow_weaker` accepts what there is without namespaces. The default
    `provider` is the one that ROLLBOOK_SANDBOX names, or the built-in one.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        packages: Sequence[str] = (),
        size: int | None = None,
        sessions: int = MAX_SESSIONS,
        provider: str | None = None,
        waiting: int = MAX_WAITING_RUNS,
        require: Require | None = None,
        allow_weaker: bool | None = None,
    ) -> None:
        check_size(size)
        self.limits = choose_limits(limits, limits)
        self._provider = check_provider(os.environ.get(PROVIDER_ENV, "built-in") if provider is None else provider)
        self.remote: RemoteSandbox | None = None
        self.packages = tuple(packages)
        self._size = size or os.cpu_count() or 1
        self._user_ids = UserIds()
        self._requirements = make_requirements(require, allow_weaker)
        self._zygote_factory = ZygoteFactory(list(packages), self._user_ids, self._requirements)
        self._waiting, self._run_slots = waiting, Semaphore(self._size)
        self._room = BoundedSemaphore(self._size + waiting)
        self._idle_launchers: queue.Queue[GuestLauncher | None] = queue.Queue()
        self._threads: ThreadPoolExecutor | None = None
        self._launchers: set[GuestLauncher] = set()
        self._sessions = sessions
        self._session_pool = SessionPool(self._new_launcher, sessions)

    def __enter__(self) -> Sandbox:
        self._threads = ThreadPoolExecutor(self._size, "sandbox")
        self._idle_launchers = queue.Queue()
        self._session_pool = SessionPool(self._new_launcher, self._sessions)
        try:
            self._threads.submit(self._start).result()
        except BaseException:
            self.close()
            raise
        for _ in range(self._size - 1):
            self._idle_launchers.put(None)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Sandbox:
        try:
            return await run_to_completion(self.__enter__)
        except asyncio.CancelledError:
            await run_to_completion(self.close)
            raise

    async def __aexit__(self, *_: object) -> None:
        await run_to_completion(self.close)

    def close(self) -> None:
        """End every zygote and all guests."""
        self._session_pool.kill()
        for launcher in list(self._launchers):
            launcher.close()
        if self._threads:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        for launcher in self._launchers:  # one may have started meanwhile
            launcher.close()
        self._launchers.clear()
        self._session_pool.close()

    def _start(self) -> None:
        if self._provider.startswith(HTTP_PREFIXES):
            self.remote = RemoteSandbox(self._provider, self.packages)
            self._requirements.check(self.remote.isolation)
        else:
            self._idle_launchers.put(self._add_launcher())

    def _new_launcher(self) -> GuestLauncher:
        if self.remote:
            raise SandboxError("not available over HTTP: it needs a sandbox of this machine")
        if self._provider == "bubblewrap":
            bubblewrap = BubblewrapProvider(make_configuration(list(self.packages)), base_python())
            return prove_isolation(GuestLauncher(bubblewrap, self._user_ids, self._requirements), self._requirements)
        return self._zygote_factory.new_launcher()

    def _add_launcher(self) -> GuestLauncher:
        launcher = self._new_launcher()
        self._launchers.add(launcher)
        return launcher

    @property
    def isolation(self) -> tuple[str, ...]:
        """The layers of isolation that are really in force."""
        if self.remote:
            return self.remote.isolation
        launchers = list(self._launchers)  # our threads change it
        return launchers[0].isolation if launchers else ()

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            raise SandboxError("the sandbox is not open: use it as a context")
        return self._threads

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        if not self._room.acquire(blocking=False):
            raise SandboxFull(f"{self._waiting} runs wait already: await some first, or Sandbox(waiting=...)")
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
        data, run_limits = encode_stdin(stdin), choose_limits(limits, self.limits)
        check_files(files or {}, run_limits)
        if self.remote:
            return self.remote.run(code, data, files or {}, run_limits)
        return self.use_launcher(lambda launcher: launcher.run(code, data, files or {}, run_limits))

    def use_launcher(self, work: Callable[[GuestLauncher], T]) -> T:
        """Call `work` with a zygote that no other caller uses meanwhile, in one of the pool's threads."""
        launcher = self._idle_launchers.get(timeout=WAIT_S)
        keep = False
        try:
            if launcher and not launcher.alive:
                self._drop_launcher(launcher)
                launcher = None
            launcher = launcher or self._add_launcher()
            result = work(launcher)
            keep = True
        except (SandboxUnsupported, CancelledError):
            keep = True
            raise
        finally:
            self._idle_launchers.put(launcher if keep else None)
            if launcher and not keep:
                self._drop_launcher(launcher)
        return result

    def _drop_launcher(self, launcher: GuestLauncher) -> None:
        self._launchers.discard(launcher)
        launcher.close()

    run = async_method(_run)
    run_sync = blocking_method(_run)

    def session(
        self,
        snapshot: bool = False,
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
        folder: str | PathLike[str] | None = None,
    ) -> Session:
        """Return a session: a context whose turns share their state. With `snapshot`, a turn that dies is rolled back.

        It begins with `files` in its own folder, or works in `folder`, one of the host's, to read and to write.
        """
        limits = choose_limits(limits, self.limits)
        check_files(files or {}, limits)
        if files and folder is not None:
            raise UsageError("session: files belong in the session's own folder; give them or a folder of the host")
        if snapshot and limits.processes != 1:
            raise UsageError(f"limit processes={limits.processes}: a session that takes snapshots has 1")
        host_folder = None if folder is None else os.fspath(folder)
        begin = partial(self._begin_session, limits, snapshot, dict(files or {}), host_folder)
        return Session(self._session_pool, self._pool(), limits, begin, self._run_slots)

    def _begin_session(
        self, limits: Limits, snapshot: bool, files: dict[str, bytes], folder: str | None
    ) -> SessionState:
        if self.remote:
            if folder is not None:
                raise SandboxUnsupported(f"folder {folder}: a sandbox that is served elsewhere cannot mount it")
            return self.remote.open_session(limits, snapshot, files)
        state_class = SnapshotState if snapshot else PersistentState
        launcher = self._session_pool.get_launcher()
        try:
            return state_class(launcher, limits, files, folder)
        except SandboxError:
            if launcher.alive:
                raise
        return state_class(
            self._session_pool.get_launcher(), limits, files, folder
        )  # it died just now: another one, once


def check_provider(name: str) -> str:
    """Return the name of a provider, or the address of a sandbox server, if it is valid."""
    if name in ("built-in", "bubblewrap") or name.startswith(HTTP_PREFIXES):
        return name
    raise UsageError(f"provider {name!r}: there are built-in, bubblewrap and http://HOST:PORT/TOKEN")
