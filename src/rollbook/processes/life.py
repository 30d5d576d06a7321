"""The child's side of life and death: called first thing by our own entry points."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress

PARENT = "ROLLBOOK_PARENT_PID"
LIFE_FD = "ROLLBOOK_LIFE_FD"

LOG_BYTES = 16 << 20

OOM = "/proc/self/oom_score_adj"
OOM_STEP, OOM_MOST = 200, 1000

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int | None = None) -> None:
    """Die when the parent does, however it dies; without an argument the parent is whoever `Child` says it is.

    On Linux the kernel does it, when the *thread* that started us ends. Elsewhere a watchdog waits for the end of the
    life pipe, which nobody but the parent holds open. Started by hand, this does nothing.
    """
    parent = os.environ.pop(PARENT, None)
    life = os.environ.pop(LIFE_FD, None)
    expected = parent_pid if parent_pid is not None else int(parent) if parent else None
    if expected is None:
        return
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        go_before_parent()
    elif life:
        os.set_inheritable(int(life), False)
        threading.Thread(target=_watch, args=(int(life),), name="life", daemon=True).start()
    # It may have died before we asked to be told.
    if os.getppid() != expected:
        os._exit(1)


def go_before_parent() -> None:
    """Where memory runs out, be the one that the kernel ends: whoever started us lives to tell of it."""
    with suppress(OSError, ValueError), open(OOM, "r+") as file:
        higher = min(OOM_MOST, int(file.read()) + OOM_STEP)
        file.seek(0)
        file.write(str(higher))


def keep_orphans() -> None:
    """Become the parent of descendants that lost theirs, so that killing our tree finds daemons too. Linux only."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def trim_log() -> None:
    """What is printed here goes to a log that may not grow without end."""
    try:
        if os.fstat(2).st_size > LOG_BYTES:
            os.ftruncate(2, 0)
    except OSError:
        return  # somebody closed it: then it cannot grow either


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _watch(fd: int) -> None:
    while os.read(fd, 4096):
        continue
    os.kill(os.getpid(), signal.SIGKILL)
