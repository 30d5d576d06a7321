"""Where guests are launched, one after another or several at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rollbook.core.json import JSON
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.guest import Guest
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

    @property
    def alive(self) -> bool:
        """Whether it can launch guests."""
        return self._provider.alive

    def launch(
        self,
        role: str,
        limits: Limits,
        *,
        code: str = "",
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        extra: Sequence[int] = (),
        request: Mapping[str, JSON] | None = None,
    ) -> Guest:
        """A new guest in a role of `inner/roles.py`, which finds what is in `request` there as well; copies of the
        `extra` descriptors are its 4, 5, ..."""
        layers = self._terms.layers(self.isolation, limits)
        account = self._provider.account(role, limits)
        try:
            guest, stream = Guest(limits, layers, account), given(stdin)
        except OSError as error:
            if account:
                account.close()
            raise SandboxError(f"no guest could be started: {error} (each holds 5 descriptors: ulimit -n)") from None
        order: dict[str, JSON] = {
            **(request or {}),
            "role": role,
            "code": code,
            "files": {name: data.hex() for name, data in (files or {}).items()},
            "limits": limits.wire(),
            "uid": self._uids.next(),
        }
        if account and account.door is not None:
            order["group"], extra = True, [*extra, account.door]
        try:
            guest.hand_over(lambda handles: self._provider.order(order, handles), stream, extra)
        except (OSError, EOFError, SandboxError) as error:
            guest.close()
            raise SandboxError(f"the sandbox broke: {error}; {self._provider.last_words()}") from None
        return guest

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


def given(stdin: bytes) -> int:
    """A descriptor to read these bytes from."""
    if not stdin:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    handle = os.memfd_create("stdin")
    os.write(handle, stdin)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
