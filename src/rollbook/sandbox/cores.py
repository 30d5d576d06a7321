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


def release(pid: int) -> None:
    """Let a process, and all that it has started, use every core that we may use."""
    allowed = os.sched_getaffinity(0)
    for process in below(pid):
        for thread in _threads(process):
            with suppress(OSError):  # it has ended meanwhile
                os.sched_setaffinity(thread, allowed)


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
