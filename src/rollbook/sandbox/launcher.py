"""Launch guests: the Provider interface, the launcher on top of it, user ids, and the proof that isolation works.

Providers (`backends/`) differ only behind the Provider interface. As root every guest gets a user id of its own, since
the kernel counts processes by user. Before anybody's code runs, `inner/proof.py` is run as untrusted code and tries
everything that must not work.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from rollbook.core import JSON
from rollbook.sandbox.cgroups import MemoryAccount
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.guest import Guest, GuestRun, make_payload, make_stdin
from rollbook.sandbox.isolation import PACKAGE_FOLDER, HostFolder, IsolationRequirements
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.results import Result
from rollbook.sandbox.supervision import next_core

FIRST_UID, PAST_UID = 0x4000_0000, 0x7000_0000
FEW_FIRST_UID, FEW_PAST_UID = 61_000, 65_000


class UserIds:
    """One number after another, from a random one on: other sandboxes of this machine draw from the same range."""

    def __init__(self) -> None:
        self._first, self._past = uid_range()
        self._next = random.randrange(self._first, self._past)
        self._lock = threading.Lock()

    def next(self) -> int:
        """A user that no other guest has."""
        with self._lock:
            uid = self._next
            self._next = uid + 1 if uid + 1 < self._past else self._first
        return uid


def uid_range() -> tuple[int, int]:
    """Far from every real user; inside a container that has only the first 65,536, at their end."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return FEW_FIRST_UID, FEW_PAST_UID
    wide = any(
        int(first) <= FIRST_UID and int(first) + int(count) >= PAST_UID for first, _, count in map(str.split, lines)
    )
    return (FIRST_UID, PAST_UID) if wide else (FEW_FIRST_UID, FEW_PAST_UID)


class Provider(Protocol):
    """Launches guests to order. `isolation` says which walls are really in force."""

    isolation: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """Whether it takes orders."""

    def open_account(self, role: str, limits: Limits) -> MemoryAccount | None:
        """Where a new guest's memory is counted, if it is."""

    def mount(self, folder: HostFolder, uid: int) -> int:
        """A folder of the host as a guest of this user can mount it, by a descriptor; Refused where it cannot."""

    def launch(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Launch a guest with a role of `inner/roles.py`.

        The descriptors are its stdin, stdout, stderr, channel and what else it is to have; then as many as the order
        has `doors`, which it goes through, and what `mount` gave, if the order says so. The last but one is the letter
        to the guest, with its code and files (the order only says whether it is `filled` with any): nobody but the
        guest itself may read it into its memory. The last one is the control line, on which the provider says
        {"begun"} with the pidfd of the guest, or {"failed"}; and at last {"ended"}.
        """

    def ping(self) -> bool:
        """Whether it lives, by its own word: asked when something has died that nobody here had killed."""

    def read_last_output(self) -> str:
        """What it complained of."""

    def close(self) -> None:
        """End everything in it."""


NO_REQUIREMENTS = IsolationRequirements()


class GuestLauncher:
    """A provider that is up. Synchronous: whoever calls it has a thread to spare. Several threads may."""

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
        """SandboxError unless the provider lives: what died without our doing may have died with it."""
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
        """A new guest in a role of `inner/roles.py`, which finds what is in `request` there as well; copies of the
        `extra` descriptors are its 4, 5, ... Its working folder has these files in it, or is this one of the host's."""
        layers, uid = self._requirements.list_layers(self.isolation, limits, folder is not None), self._user_ids.next()
        with ExitStack() as held:
            account = self._provider.open_account(role, limits)
            held.callback(account.close if account else _do_nothing)
            shown = self._open_folder(folder, uid) if folder is not None else None
            held.callback(shown.close if shown else _do_nothing)
            try:
                letter = make_payload(code, files, request)
                held.callback(os.close, letter)
                stream = make_stdin(stdin)
                held.callback(os.close, stream)
                guest = Guest(limits, layers, account, shown)
            except OSError as error:
                words = f"no guest could be started: {error} (each holds 5 descriptors: ulimit -n)"
                raise SandboxError(words) from None
            held.pop_all()  # they are the guest's from here on
        doors, trees = account.doors if account else (), shown.trees if shown else ()
        order: dict[str, JSON] = {
            "role": role,
            "filled": bool(files),
            "limits": {**limits.to_request(), "spare_mb": account.spare_mb if account else None},
            "uid": uid,
            "doors": len(doors),
            "mount": bool(trees),
        }
        beside = [*extra, *doors, *trees, letter]
        try:
            guest.send_descriptors(lambda handles: self._provider.launch(order, handles), stream, beside)
        except (OSError, EOFError, SandboxError) as error:
            guest.close()
            raise SandboxError(f"the sandbox broke: {error}; {self._provider.read_last_output()}") from None
        finally:
            os.close(letter)
        return guest

    def _open_folder(self, path: str, uid: int) -> HostFolder:
        """A folder of the host, ready to be mounted."""
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
        """One fresh run; SandboxError when the walls could not be put up or the zygote died."""
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
    """Have untrusted code try the walls; SandboxError, and no slot, when one does not stand."""
    return _close_on_error(launcher, lambda: _run_proof(launcher, requirements))


def _close_on_error(launcher: GuestLauncher, act: Callable[[], None]) -> GuestLauncher:
    try:
        act()
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
