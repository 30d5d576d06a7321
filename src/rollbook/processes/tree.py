"""The processes that belong to a child: its descendants, its group and its session, found through /proc."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from rollbook.processes.life import PARENT

ROUNDS = 16
LOOK_S = 0.25


class Process(NamedTuple):
    """A process as /proc shows it; the start time tells it from a later one of the same number."""

    pid: int
    parent: int
    group: int
    session: int
    start: int


MARK = "ROLLBOOK_CHILD"
"""Set in the environment of every child, to a word of its own: what it starts inherits it, wherever it flees."""


def kill_tree(root: int, mark: str = "") -> None:
    """Kill everything that belongs to `root`, the root last. It must not have been reaped: its number is still its own.

    All are stopped before any is killed: a process that sees its parent die cannot fork away in between.
    """
    stopped = _stop_all(lambda: [*members(root), *marked(mark)])
    for process in sorted(stopped, key=lambda p: p.pid == root):
        _signal(process, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill everything that this process started, and what that started; with `keep_orphans`, daemons too."""
    me = os.getpid()
    for process in _stop_all(lambda: [p for p in members(me) if p.pid != me]):
        _signal(process, signal.SIGKILL)


def end_with_parent() -> None:
    """For a child that starts others: when its parent is gone, however that came, it ends with all that it started.

    The parent is whoever `Child` says it is; started by hand, this does nothing.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        threading.Thread(target=_outlive, args=(int(parent),), name="life", daemon=True).start()


def _outlive(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    kill_descendants()
    os.killpg(0, signal.SIGKILL)


def _stop_all(find: Callable[[], list[Process]]) -> list[Process]:
    stopped: dict[int, Process] = {}
    for _ in range(ROUNDS):
        fresh = [p for p in find() if p.pid not in stopped]
        if not fresh:
            break
        for process in fresh:
            _signal(process, signal.SIGSTOP)
            stopped[process.pid] = process
    return list(stopped.values())


def marked(mark: str) -> list[Process]:
    """Processes that carry a child's mark: daemons that left its session, their parents long dead, are found so."""
    if not mark:
        return []
    word = f"{MARK}={mark}\0".encode()
    return [p for p in _processes() if word in _environ(p.pid)]


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + file.read() + b"\0"
    except OSError:
        return b""


def members(root: int) -> list[Process]:
    """The root, its descendants, and whoever is still in its group or session; empty where there is no /proc."""
    processes = list(_processes())
    mine = {p.pid: p for p in processes if root in (p.pid, p.group, p.session)}
    while found := [p for p in processes if p.parent in mine and p.pid not in mine]:
        mine.update((p.pid, p) for p in found)
    return list(mine.values())


def _processes() -> Iterable[Process]:
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit() and (process := _read(int(name))):
                yield process


def _read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name stands in brackets and may itself hold spaces and brackets.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _signal(process: Process, number: signal.Signals) -> None:
    now = _read(process.pid)
    if now is None or now.start != process.start:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, number)
