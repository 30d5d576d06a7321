"""Where guests are launched, one after another or several at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from rollbook.core.json import JSON
from rollbook.sandbox.cores import next_core
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.folder import Folder
from rollbook.sandbox.guest import Guest
from rollbook.sandbox.letter import given, sealed
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.provider import Provider
from rollbook.sandbox.result import Result
from rollbook.sandbox.run import Run
from rollbook.sandbox.terms import Terms
from rollbook.sandbox.uids import Uids


class Slot:
    """A provider that is up. Synchronous: whoever calls it has a thread to spare. Several threads may."""

    def __init__(self, provider: Provider, uids: Uids, terms: Terms = Terms()) -> None:  # noqa: B008 - frozen
        self._provider, self._uids, self._terms = provider, uids, terms
        self.isolation = provider.isolation
        self.core = next_core()

    @property
    def alive(self) -> bool:
        """Whether it can launch guests."""
        return self._provider.alive

    def check(self) -> None:
        """SandboxError unless the provider lives: what died without our doing may have died with it."""
        if not self._provider.answers():
            raise SandboxError(f"the sandbox broke: it was killed, or does not answer; {self._provider.last_words()}")

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
        layers, uid = self._terms.layers(self.isolation, limits, folder is not None), self._uids.next()
        with ExitStack() as held:
            account = self._provider.account(role, limits)
            held.callback(account.close if account else _nothing)
            shown = self._shown(folder, uid) if folder is not None else None
            held.callback(shown.close if shown else _nothing)
            try:
                letter = sealed(code, files, request)
                held.callback(os.close, letter)
                stream = given(stdin)
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
            "limits": {**limits.wire(), "spare_mb": account.spare_mb if account else None},
            "uid": uid,
            "doors": len(doors),
            "mount": bool(trees),
        }
        beside = [*extra, *doors, *trees, letter]
        try:
            guest.hand_over(lambda handles: self._provider.order(order, handles), stream, beside)
        except (OSError, EOFError, SandboxError) as error:
            guest.close()
            raise SandboxError(f"the sandbox broke: {error}; {self._provider.last_words()}") from None
        finally:
            os.close(letter)
        return guest

    def _shown(self, path: str, uid: int) -> Folder:
        """A folder of the host, ready to be mounted."""
        folder = Folder(path)
        try:
            folder.trees.append(self._provider.mount(folder, uid))
        except (OSError, EOFError) as error:
            folder.close()
            raise SandboxError(f"the sandbox broke: {error}; {self._provider.last_words()}") from None
        except BaseException:
            folder.close()
            raise
        return folder

    def run(self, code: str, stdin: bytes, files: Mapping[str, bytes], limits: Limits) -> Result:
        """One fresh run; SandboxError when the walls could not be put up or the zygote died."""
        guest = self.launch("run", limits, code=code, stdin=stdin, files=files)
        try:
            return Run(guest, limits).result()
        finally:
            guest.close()

    def close(self) -> None:
        """End everything in it."""
        self._provider.close()


def _nothing() -> None:
    return None
