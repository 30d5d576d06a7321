"""The CPU time of a guest that may have several processes, where no control group keeps it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol

from rollbook.processes.tree import members
from rollbook.sandbox.process import Process, cpu_clock

TICKS = os.sysconf("SC_CLK_TCK")
LISTS = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether this kernel keeps lists of children; without, all processes there are have to be looked through."""


class Clock(Protocol):
    """Whose CPU time is looked at."""

    def cpu_s(self) -> float:
        """The CPU time so far; never less than before."""


class Family:
    """A process and all that it has started. Orphans come to the first process of the namespace, so that nobody who
    lives is missed; of the dead, those are counted that somebody has waited for, or that were there at a look."""

    def __init__(self, process: Process) -> None:
        self._root = first_of_namespace(process.pid)
        self._most = 0.0

    def cpu_s(self) -> float:
        """Of all of them together, as far as it can be seen."""
        self._most = max(self._most, sum(map(used_s, below(self._root))))
        return self._most


def first_of_namespace(pid: int) -> int:
    """Who takes the orphans: the process itself, or where a program of its own put up the walls, that one."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
        if fields["NSpid"].split()[-1] != "1":
            return int(fields["PPid"])
    return pid


def below(root: int) -> list[int]:
    """A process and its descendants."""
    if not LISTS:
        return [process.pid for process in members(root)]
    found = [root]
    for pid in found:
        found += children(pid)
    return found


def children(pid: int) -> list[int]:
    """Of all threads of a process; none when it is gone."""
    if not LISTS:
        return [process.pid for process in members(pid) if process.parent == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]


def used_s(pid: int) -> float:
    """The CPU time of a process and of the children that it has waited for."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields:
        return 0.0
    user, system, users, systems = (int(field) / TICKS for field in fields[11:15])
    return (cpu_clock(pid) or user + system) + users + systems


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16)
    except OSError:
        return b""
