"""The memory of guests, counted by control groups where there are any.

The address space of each process is always bounded: a program learns of that as a MemoryError, which it may catch, and
a session keeps its state. What processes have together, with their files and what the kernel holds for them, only a
group can bound, and it kills. A zygote lives in a group with those of its guests that come one after another: nothing
has to be moved, and a run costs nothing more. A session has a group of its own.
"""

from __future__ import annotations

import os

from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.groups import Group, Groups
from rollbook.sandbox.limits import Limits

SLACK_MB, PROCESS_MB = 8, 4
"""What the kernel needs for a guest, and what a copy of the interpreter grows by when it runs."""
AT_ONCE = {"candidate": 2, "examiner": 2, "snapshot": 2}
"""How many processes of this role's kind fill a group at the same time, each up to the limit."""
STAY = ("session", "snapshot")


class Account:
    """What a guest uses is counted here."""

    def __init__(self, group: Group, own: bool, several: bool) -> None:
        self._group, self._own, self._several = group, own, several
        self._kills = group.seen
        self.door = group.door() if own else None

    def ran_out(self) -> bool:
        """Whether somebody was killed for want of memory since this was last asked."""
        before, self._kills = self._kills, self._group.kills()
        return self._kills > before

    def let_in(self) -> None:
        """The guest has been told where to go."""
        if self.door is not None:
            os.close(self.door)
            self.door = None

    def close(self) -> None:
        """The guest is gone. What was killed of it without anybody asking must not be put down to the next."""
        self.let_in()
        if self._own:
            self._group.remove()
        elif self._several:
            self._group.kills()


class Memory:
    """The accounts of one zygote's guests."""

    def __init__(self, groups: Groups | None, pid: int) -> None:
        self._groups = groups
        self._base = 0
        self._group = _entered(groups, pid) if groups else None

    @property
    def grouped(self) -> bool:
        """Whether there are groups."""
        return self._group is not None

    def settle(self) -> None:
        """The zygote is up: what it uses by now is not a guest's."""
        if self._group:
            self._base = self._group.used_bytes()

    def account(self, role: str, limits: Limits) -> Account | None:
        """Where a new guest is counted, with its limit set; None without groups."""
        if not (self._groups and self._group):
            return None
        if role in STAY:
            group = self._groups.make()
            self._allow(group, role, limits, copies=1, own=True)
            return Account(group, True, limits.processes > 1)
        self._allow(self._group, role, limits, copies=2, own=False)
        return Account(self._group, False, limits.processes > 1)

    def _allow(self, group: Group, role: str, limits: Limits, copies: int, own: bool) -> None:
        """Beyond the limit: the zygote where it is in there too, its copy, and the files, which are memory as well."""
        each = limits.memory_mb + limits.files_mb + SLACK_MB + PROCESS_MB * limits.processes
        try:
            group.limit(copies * self._base + (AT_ONCE.get(role, 1) * each << 20))
        except OSError as error:
            if own:
                group.remove()
            raise SandboxError(f"the memory of a guest cannot be bounded: {error}") from None

    def close(self) -> None:
        """The zygote has been killed."""
        if self._group:
            self._group.remove()


def _entered(groups: Groups, pid: int) -> Group:
    group = groups.make()
    try:
        group.enter(pid)
    except OSError as error:
        group.remove()
        raise SandboxError(f"the zygote could not be moved to its control group: {error}") from None
    return group
