"""The memory of guests, counted by control groups where there are any.

What processes have together, with their files and what the kernel holds for them, only a group can bound, and it kills.
A zygote lives in a group with those of its guests that come one after another: nothing has to be moved, and a run costs
nothing more. A session has a group of its own, and so has who may have several processes: their CPU time is told there.

Without a group the address space of each process is bounded, which counts what is merely reserved. With one it is not.
There a process's own private memory is bounded as well, so that who asks for far too much gets a MemoryError, which it
may catch: beyond the limit lies room for the stacks of all threads, which are hardly ever used. Tests and code share a
group, which cannot tell how much each has: there is no such room for them. Nor can the group of a session that takes
snapshots tell the state from the turn that began as a copy of it: every turn may add as much as the limit says, and is
weighed when it is over.
"""

from __future__ import annotations

import os
from math import ceil

from rollbook.sandbox.clock import Clock
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.groups import Group, Groups
from rollbook.sandbox.limits import THREADS, Limits

SLACK_MB, PROCESS_MB = 8, 4
"""What the kernel needs for a guest, and what a copy of the interpreter grows by when it runs."""
PAIRS = ("candidate", "examiner")
"""Roles of which two share the zygote's group at the same time, each up to the limit."""
STAY = ("session", "snapshot")
STACKS_MB = 8 * THREADS
STEP_MB = 8


class Account:
    """What a guest uses is counted here."""

    def __init__(self, group: Group, own: bool, base: int, spare_mb: int) -> None:
        self._group, self._own, self._base = group, own, base
        self.spare_mb = spare_mb
        """How much private memory a process may reserve beyond the limit."""
        self._kills = group.seen
        self.doors = group.doors() if own else []

    @property
    def clock(self) -> Clock | None:
        """The CPU time of all its processes, if that is told and the group is its own."""
        return self._group.clock if self._own else None

    def renew(self, limits: Limits, own_mb: float) -> None:
        """Beyond what is held by now, as much again as the limit says; in steps, since every change takes time."""
        held_mb = STEP_MB * ceil(own_mb / STEP_MB)
        _bound(self._group, self._base + (held_mb << 20) + _bytes_of(limits))

    def ran_out(self) -> bool:
        """Whether somebody was killed for want of memory since this was last asked."""
        before, self._kills = self._kills, self._group.kills()
        return self._kills > before

    def let_in(self) -> None:
        """The guest has been told where to go."""
        while self.doors:
            os.close(self.doors.pop())

    def close(self) -> None:
        """The guest is gone."""
        self.let_in()
        if self._own:
            self._group.remove()


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
        several = limits.processes > 1
        if not (role in STAY or several):
            guests = 2 if role in PAIRS else 1
            # The zygote is in there, and its copy that is the guest.
            _bound(self._group, 2 * self._base + guests * _bytes_of(limits))
            return Account(self._group, False, self._base, STACKS_MB if guests == 1 else 0)
        group = self._groups.make(clock=several)
        try:
            _bound(group, self._base + _bytes_of(limits))
            return Account(group, True, self._base, STACKS_MB)
        except BaseException:
            group.remove()
            raise

    def close(self) -> None:
        """The zygote has been killed."""
        if self._group:
            self._group.remove()


def _bytes_of(limits: Limits) -> int:
    """What a guest may have beyond the interpreter's own: its limit, and files, which are memory as well."""
    return limits.memory_mb + limits.files_mb + SLACK_MB + PROCESS_MB * limits.processes << 20


def _bound(group: Group, size: int) -> None:
    try:
        group.limit(size)
    except OSError as error:
        raise SandboxError(f"the memory of a guest cannot be bounded: {error}") from None


def _entered(groups: Groups, pid: int) -> Group:
    group = groups.make()
    try:
        group.enter(pid)
    except OSError as error:
        group.remove()
        raise SandboxError(f"the zygote could not be moved to its control group: {error}") from None
    return group
