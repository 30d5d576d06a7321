"""What isolation a user insists on, and what one can do without."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

import msgspec

from rollbook.errors import UsageError
from rollbook.sandbox.errors import Refused, SandboxError
from rollbook.sandbox.limits import Limits

Require: TypeAlias = Literal["full"]
ENV = "ROLLBOOK_WEAKER_SANDBOX"
NAMESPACES = frozenset({"pid", "mount", "network", "ipc"})
FULL = NAMESPACES | {"seccomp"}
CGROUP = "cgroup"
UNCOUNTED = "no process limit"
MEMORY_OPEN = "no cgroup: total memory open"
HOST_FOLDER = "folder of the host: total size open"


class Terms(msgspec.Struct, frozen=True):
    """`require="full"`: namespaces, Landlock and seccomp, and a cgroup for those who may have several processes.

    `allow_weaker`: where namespaces are not to be had, less will do.
    """

    require: Require | None = None
    allow_weaker: bool = False

    def check(self, isolation: tuple[str, ...]) -> None:
        """SandboxError when these walls are not what was asked for."""
        missing = sorted(FULL - set(isolation)) + ([] if _landlock(isolation) else ["landlock"])
        if self.require == "full" and missing:
            raise SandboxError(f'require="full": this machine gives no {", no ".join(missing)}')

    def layers(self, isolation: tuple[str, ...], limits: Limits, hosted: bool = False) -> tuple[str, ...]:
        """The walls of a guest with these limits, perhaps in a folder of the host; Refused when they cannot hold it."""
        return (*self._of_processes(isolation, limits), *([HOST_FOLDER] if hosted else []))

    def _of_processes(self, isolation: tuple[str, ...], limits: Limits) -> tuple[str, ...]:
        if limits.processes == 1 or "remote" in isolation:
            return isolation
        if not set(isolation) >= NAMESPACES:
            raise Refused(f"processes={limits.processes}: without namespaces a run has 1 process")
        if UNCOUNTED in isolation:
            raise Refused(f"processes={limits.processes}: root without privileges has 1, nobody counts its processes")
        if CGROUP in isolation:
            return isolation
        if self.require == "full":
            raise Refused(f'require="full" and processes={limits.processes}: that needs a cgroup for the memory')
        return (*isolation, MEMORY_OPEN)


def terms_of(require: str | None, allow_weaker: bool | None) -> Terms:
    """What was asked for; whether less will do can also be said in the environment."""
    if require not in (None, "full"):
        raise UsageError(f'require={require!r}: the one thing to require is "full"')
    if require and allow_weaker:
        raise UsageError('require="full" and allow_weaker=True: one or the other')
    weaker = bool(os.environ.get(ENV)) and not require if allow_weaker is None else allow_weaker
    return Terms("full" if require else None, weaker)


def _landlock(isolation: tuple[str, ...]) -> bool:
    return any(layer.startswith("landlock-") for layer in isolation)
