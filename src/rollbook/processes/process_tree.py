"""Trees of processes: find and kill all descendants of a child, and let a process die with its parent.

Every child carries a random tag in its environment, which everything it starts inherits: daemons that left its session
are found by it. Our own entry points first call the functions of the child's side: die with the parent, adopt orphans,
be killed first when memory runs out. Environment processes import this module, so it must not load asyncio.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

MAX_STOP_ROUNDS = 16


class ProcessInfo(NamedTuple):
    """A process in /proc; the start time distinguishes it from a later one with the same number."""

    pid: int
    parent: int
    group: int
    session: int
    start: int


CHILD_TAG = "ROLLBOOK_CHILD"
"""Set to a random word in the environment of every child: what it starts inherits it, in whatever session."""


def kill_tree(root: int, tag: str = "") -> None:
    """Kill everything that belongs to `root`, the root last. It must not have been reaped: its number is still its own.

    All are stopped before any is killed: a process that sees its parent die cannot fork away in between.
    """
    stopped = _stop_all(lambda: [*find_members(root), *find_tagged(tag)])
    for process in sorted(stopped, key=lambda p: p.pid == root):
        _send_signal(process, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill everything that this process started, and what that started; after `become_subreaper`, daemons too."""
    me = os.getpid()
    for process in _stop_all(lambda: [p for p in find_members(me) if p.pid != me]):
        _send_signal(process, signal.SIGKILL)


def kill_by_variable(name: str, value: str) -> None:
    """Kill every process that has a variable with this value in its environment."""
    for process in _stop_all(lambda: _find_by_variable(name, value)):
        _send_signal(process, signal.SIGKILL)


def _stop_all(find: Callable[[], list[ProcessInfo]]) -> list[ProcessInfo]:
    stopped: dict[int, ProcessInfo] = {}
    for _ in range(MAX_STOP_ROUNDS):
        fresh = [p for p in find() if p.pid not in stopped]
        if not fresh:
            break
        for process in fresh:
            _send_signal(process, signal.SIGSTOP)
            stopped[process.pid] = process
    return list(stopped.values())


def find_tagged(tag: str) -> list[ProcessInfo]:
    """Return the processes with a child's tag: also daemons that left its session and whose parents are dead."""
    if not tag:
        return []
    return _find_by_variable(CHILD_TAG, tag)


def _find_by_variable(name: str, value: str) -> list[ProcessInfo]:
    word = f"\0{name}={value}\0".encode()
    return [p for p in _list_processes() if word in _read_environ(p.pid)]


def _read_environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + file.read() + b"\0"
    except OSError:
        return b""


def find_members(root: int) -> list[ProcessInfo]:
    """Return the root, its descendants, and what is still in its group or session; empty where there is no /proc."""
    processes = list(_list_processes())
    mine = {p.pid: p for p in processes if root in (p.pid, p.group, p.session)}
    while children := [p for p in processes if p.parent in mine and p.pid not in mine]:
        mine.update((p.pid, p) for p in children)
    return list(mine.values())


def _list_processes() -> Iterable[ProcessInfo]:
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit() and (process := _read_process(int(name))):
                yield process


def _read_process(pid: int) -> ProcessInfo | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name is in brackets and may itself contain spaces and brackets.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _send_signal(process: ProcessInfo, number: signal.Signals) -> None:
    now = _read_process(process.pid)
    if now is None or now.start != process.start:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, number)


PARENT_PID = "ROLLBOOK_PARENT_PID"
LIFE_FD = "ROLLBOOK_LIFE_FD"

MAX_LOG_BYTES = 16 << 20

OOM_SCORE_FILE = "/proc/self/oom_score_adj"
OOM_SCORE_STEP, MAX_OOM_SCORE = 200, 1000

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int | None = None) -> None:
    """Die when the parent dies, however that happens; without an argument, the parent is the one that `Child` set.

    On Linux the kernel does it, when the *thread* that started us ends. Elsewhere a watchdog waits for the end of the
    life pipe, which only the parent holds open. Does nothing in a process that was started by hand.
    """
    parent = os.environ.pop(PARENT_PID, None)
    life = os.environ.pop(LIFE_FD, None)
    expected = parent_pid if parent_pid is not None else int(parent) if parent else None
    if expected is None:
        return
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        raise_oom_score()
    elif life:
        os.set_inheritable(int(life), False)
        threading.Thread(target=_watch_life_pipe, args=(int(life),), name="life", daemon=True).start()
    # The parent may have died before the request above.
    if os.getppid() != expected:
        os._exit(1)


def raise_oom_score() -> None:
    """Let the kernel kill this process first when memory runs out: its parent survives and reports that."""
    with suppress(OSError, ValueError), open(OOM_SCORE_FILE, "r+") as file:
        higher = min(MAX_OOM_SCORE, int(file.read()) + OOM_SCORE_STEP)
        file.seek(0)
        file.write(str(higher))


def become_subreaper() -> None:
    """Become the parent of descendants that lost theirs, so that killing our tree finds daemons too. Linux only."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def trim_log() -> None:
    """Empty the log on standard error when it is too large: it must not grow without end."""
    try:
        if os.fstat(2).st_size > MAX_LOG_BYTES:
            os.ftruncate(2, 0)
    except OSError:
        return  # it is closed, so it cannot grow


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _watch_life_pipe(fd: int) -> None:
    while os.read(fd, 4096):
        continue
    os.kill(os.getpid(), signal.SIGKILL)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


PARENT_CHECK_S = 0.25


def end_with_parent() -> None:
    """End this process with all that it started when its parent is gone: for a child that starts others.

    The parent is the one that `Child` set; does nothing in a process that was started by hand.
    """
    parent = os.environ.pop(PARENT_PID, None)
    if parent is not None:
        threading.Thread(target=_wait_for_parent_death, args=(int(parent),), name="life", daemon=True).start()


def _wait_for_parent_death(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    kill_descendants()
    os.killpg(0, signal.SIGKILL)
