"""The strongest walls that this machine gives, found by trying, and proven before anybody's code runs behind them."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from rollbook.core.json import JSON
from rollbook.sandbox import groups, owner
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.places import HERE, base_python, configuration
from rollbook.sandbox.slot import Slot
from rollbook.sandbox.terms import ENV, Terms
from rollbook.sandbox.uids import Uids
from rollbook.sandbox.zygote import Zygote

PROOF = Limits(seconds=10.0, wall_seconds=60.0)
NAMESPACES = [{"tier": "namespaces", "mode": "root"}, {"tier": "namespaces", "mode": "user"}]
WEAKER = [{"tier": "user", "mode": "root"}, {"tier": "same-user", "mode": "user"}]


class Tiers:
    """Starts zygotes: the first finds out which tier there is, the others are like it.

    namespaces: of users, processes, mounts, network and IPC, with Landlock and seccomp. Weaker, and only if allowed:
    user, where root can give each guest a user of its own; same-user, where Landlock alone keeps it from the others.
    """

    def __init__(self, packages: list[str], uids: Uids, terms: Terms) -> None:
        self._packages, self._uids, self._terms = packages, uids, terms
        self._lock = threading.Lock()
        self._chosen: dict[str, JSON] | None = None
        self._groups: groups.Groups | None = None

    def slot(self) -> Slot:
        """A zygote that is up."""
        if sys.platform != "linux":
            raise SandboxError(f"the sandbox is built of what the Linux kernel has, and this is {sys.platform}")
        with self._lock:
            if self._chosen is None:
                owner.clear_folders(Path(tempfile.gettempdir()))
                self._groups = groups.find()
                return self._choose(configuration(self._packages))
        return self._start(self._chosen)

    def _choose(self, config: dict[str, JSON]) -> Slot:
        reasons: list[str] = []
        for tier in self._tiers():
            try:
                slot = prove(self._start({**config, **tier}), self._terms)
            except SandboxError as error:
                reasons.append(f"{tier['tier']}: {error}")
                continue
            self._chosen = {**config, **tier}
            return slot
        raise SandboxError(self._refusal(reasons))

    def _tiers(self) -> Iterator[dict[str, str]]:
        for tier in NAMESPACES + (WEAKER if self._terms.allow_weaker else []):
            if tier["mode"] == "user" or os.geteuid() == 0:
                yield tier

    def _refusal(self, reasons: list[str]) -> str:
        ways = f"; allow weaker walls with allow_weaker=True, --allow-weaker of `rollbook sandbox`, or {ENV}=1"
        return f"no sandbox here ({'; '.join(reasons)}){'' if self._terms.allow_weaker else ways}"

    def _start(self, config: dict[str, JSON]) -> Slot:
        return Slot(Zygote(config, base_python(), self._groups), self._uids, self._terms)


def prove(slot: Slot, terms: Terms) -> Slot:
    """Have untrusted code try the walls; SandboxError, and no slot, when one does not stand."""
    return _or_close(slot, lambda: _try_walls(slot, terms))


def _or_close(slot: Slot, act: Callable[[], None]) -> Slot:
    try:
        act()
    except BaseException:
        slot.close()
        raise
    return slot


def _try_walls(slot: Slot, terms: Terms) -> None:
    terms.check(slot.isolation)
    result = slot.run((HERE / "inner" / "proof.py").read_text(), str(os.getpid()).encode(), {}, PROOF)
    if result.status != "ok":
        words = result.error.traceback if result.error else result.stderr
        raise SandboxError(f"the self-test ended with {result.status}: {words.strip()[-300:]}")
    if result.stdout:
        raise SandboxError(f"the self-test could {result.stdout}")
