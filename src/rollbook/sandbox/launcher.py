"""Launch guests: the Provider interface, the launcher on top of it, user ids, and the proof that isolation works.

Providers (`backends/`) differ only behind the Provider interface. As root every guest gets its own user id, since the
kernel counts processes by user. Before any user's code runs, `inner/proof.py` is run as untrusted code and tries
everything that must not work.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from rollbook.core import JSON
from rollbook.errors import SandboxError
from rollbook.sandbox.cgroups import MemoryAccount
from rollbook.sandbox.guest import Guest, GuestRun, make_payload, make_stdin
from rollbook.sandbox.isolation import PACKAGE_FOLDER, HostFolder, IsolationRequirements
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.results import Result
from rollbook.sandbox.supervision import next_core

FIRST_UID, PAST_UID = 0x4000_0000, 0x7000_0000
FEW_FIRST_UID, FEW_PAST_UID = 61_000, 65_000


class UserIds:
    """Counts up from a random user id: other sandboxes of this machine use the same range."""

    def __init__(self) -> None:
        self._first, self._past = uid_range()
        self._next = random.randrange(self._first, self._past)
        self._lock = threading.Lock()

    def next(self) -> int:
        """Return a user id that no other guest has."""
        with self._lock:
            uid = self._next
            self._next = uid + 1 if uid + 1 < self._past else self._first
        return uid


def uid_range() -> tuple[int, int]:
    """Return a range far from every real user; in a container that has only the first 65,536 ids, the end of those."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return FEW_FIRST_UID, FEW_PAST_UID
    wide = any(
        int(first) <= FIRST_UID and int(first) + int(count) >= PAST_UID for first, _, count in map(str.split, lines)
    )
    return (FIRST_UID, PAST_UID) if wide else (FEW_FIRST_UID, FEW_PAST_UID)


class Provider(Protocol):
    """Launches guests. `isolation` lists the layers that are really in force."""

    isolation: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """Whether it can launch guests."""

    def open_account(self, role: str, limits: Limits) -> MemoryAccount | None:
        """Open the account that counts a new guest's memory, if this provider counts it."""

    def mount(self, folder: HostFolder, uid: int) -> int:
        """Return a descriptor by which a guest of this user can mount a folder; SandboxUnsupported if it cannot."""

    def launch(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Launch a guest with a role of `inner/roles.py`.

        The descriptors are its stdin, stdout, stderr, channel and further ones for its role; then `procs_files` of the
        order counts the files by which it joins control groups; then what `mount` returned, if the order has `mount`.
        The last but one is the payload with the guest's code and files (`has_files` in the order: whether there are
        files): only the guest itself may read it into its memory. The last one is the control channel, on which the
        provider sends {"begun"} with the pidfd of the guest, or {"failed"}; and finally {"ended"}.
        """

    def ping(self) -> bool:
        """Return whether it answers: called when a process has died that the host did not kill."""

    def read_last_output(self) -> str:
        """Return the end of its error output."""

    def close(self) -> None:
        """End it with all its guests."""


NO_REQUIREMENTS = IsolationRequirements()


class GuestLauncher:
    """Launches guests with a running provider. Synchronous, for use in worker threads, which may share one."""

    def __init__(
        self, provider: Provider, uids: UserIds, requirements: IsolationRequirements = NO_REQUIREMENTS
    ) -> None:
        self._provider, self._user_ids, self._requirements = provider, uids, requirements
        self.isolation = provider.isolation
        self.core = next_core()

    @property
    def alive(self) -> bool:
        """Whether it can launch guests."""
        return self._provider.alive

    def check_provider_alive(self) -> None:
        """Raise SandboxError unless the provider is alive: a guest that we did not kill may have died with it."""
        if not self._provider.ping():
            raise SandboxError(
                f"the sandbox broke: it was killed, or does not answer; {self._provider.read_last_output()}"
            )

    def launch(
        self,
        role: str,
        limits: Limits,
        *,
        code: str = "",
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        folder: str | None = None,
        extra: Sequence[int] = (),
        request: Mapping[str, JSON] | None = None,
    ) -> Guest:
        """Launch a guest in a role of `inner/roles.py`, which receives `request` as well.

        Copies of the `extra` descriptors are its 4, 5, ... Its working folder has `files`, or is the host's `folder`.
        """
        layers, uid = self._requirements.list_layers(self.isolation, limits, folder is not None), self._user_ids.next()
        with ExitStack() as cleanup:
            account = self._provider.open_account(role, limits)
            cleanup.callback(account.close if account else _do_nothing)
            host_folder = self._open_folder(folder, uid) if folder is not None else None
            cleanup.callback(host_folder.close if host_folder else _do_nothing)
            try:
                payload = make_payload(code, files, request)
                cleanup.callback(os.close, payload)
                stdin_fd = make_stdin(stdin)
                cleanup.callback(os.close, stdin_fd)
                guest = Guest(limits, layers, account, host_folder)
            except OSError as error:
                words = f"no guest could be started: {error} (each holds 5 descriptors: ulimit -n)"
                raise SandboxError(words) from None
            cleanup.pop_all()  # they are the guest's from here on
        procs_files, trees = account.procs_files if account else (), host_folder.trees if host_folder else ()
        order: dict[str, JSON] = {
            "role": role,
            "has_files": bool(files),
            "limits": {**limits.to_request(), "spare_mb": account.spare_mb if account else None},
            "uid": uid,
            "procs_files": len(procs_files),
            "mount": bool(trees),
        }
        others = [*extra, *procs_files, *trees, payload]
        try:
            guest.send_descriptors(lambda handles: self._provider.launch(order, handles), stdin_fd, others)
        except (OSError, EOFError, SandboxError) as error:
            guest.close()
            raise SandboxError(f"the sandbox broke: {error}; {self._provider.read_last_output()}") from None
        finally:
            os.close(payload)
        return guest

    def _open_folder(self, path: str, uid: int) -> HostFolder:
        """Open a folder of the host and prepare its mount."""
        folder = HostFolder(path)
        try:
            folder.trees.append(self._provider.mount(folder, uid))
        except (OSError, EOFError) as error:
            folder.close()
            raise SandboxError(f"the sandbox broke: {error}; {self._provider.read_last_output()}") from None
        except BaseException:
            folder.close()
            raise
        return folder

    def run(self, code: str, stdin: bytes, files: Mapping[str, bytes], limits: Limits) -> Result:
        """Run code in a fresh guest; SandboxError when isolation could not be set up or the zygote died."""
        guest = self.launch("run", limits, code=code, stdin=stdin, files=files)
        try:
            return GuestRun(guest, limits).wait_for_result()
        finally:
            guest.close()

    def close(self) -> None:
        """End everything in it."""
        self._provider.close()


def _do_nothing() -> None:
    return None


PROOF_LIMITS = Limits(seconds=10.0, wall_seconds=60.0)


def prove_isolation(launcher: GuestLauncher, requirements: IsolationRequirements) -> GuestLauncher:
    """Check isolation with untrusted code; SandboxError, and the launcher is closed, when something forbidden works."""
    try:
        _run_proof(launcher, requirements)
    except BaseException:
        launcher.close()
        raise
    return launcher


def _run_proof(launcher: GuestLauncher, requirements: IsolationRequirements) -> None:
    requirements.check(launcher.isolation)
    result = launcher.run(
        (PACKAGE_FOLDER / "inner" / "proof.py").read_text(), str(os.getpid()).encode(), {}, PROOF_LIMITS
    )
    if result.status != "ok":
        words = result.error.traceback if result.error else result.stderr
        raise SandboxError(f"the self-test ended with {result.status}: {words.strip()[-300:]}")
    if result.stdout:
        raise SandboxError(f"the self-test could {result.stdout}")
