"""The core on which two processes meet that take turns: two guests, or a guest and the thread that waits for it.

Each waits while the other works, so that they need one core together; on two, every word between them wakes up a core
that has fallen asleep, which costs more than what is said. Whoever is still busy after a moment may go anywhere.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from rollbook.sandbox.clock import below

TOGETHER_S = 0.1
WALKS_MOST = 16
_here = getattr(ctypes.CDLL(None), "sched_getcpu", None)
_turns: Iterator[int] = count(random.randrange(1 << 16))  # other processes on this machine start elsewhere


def next_core() -> int | None:
    """One of those that we may use, each in its turn; None where nobody can choose."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[next(_turns) % len(allowed)]


def come_here(pid: int) -> None:
    """Have a process run on the core of this thread, which is about to wait for it."""
    if _here:
        with suppress(OSError):  # it is gone, or we may not use this core any more
            os.sched_setaffinity(pid, [_here()])


def release(pid: int) -> bool:
    """Let a process, and all that it has started, use every core that we may use; whether somebody could not before.

    What is born while we walk has the core of whoever started it: we walk again until nobody is found on one. Who is
    on the way then is seen only later: whoever was told of somebody should come again.
    """
    allowed = os.sched_getaffinity(0)
    for walk in range(WALKS_MOST):
        freed = [_freed(thread, allowed) for process in below(pid) for thread in _threads(process)]
        if not any(freed):
            return walk > 0
    return True


def _freed(thread: int, allowed: set[int]) -> bool:
    """Whether there was something to be done."""
    try:
        if os.sched_getaffinity(thread) == allowed:
            return False
        os.sched_setaffinity(thread, allowed)
    except OSError:  # it has ended meanwhile
        return False
    return True


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
