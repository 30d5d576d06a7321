"""The guard of a worker that starts containers: when the worker is gone, it removes what the worker left.

    python -m rollbook.containers.guard RUNTIME < PIPE

It reads its standard input, a pipe that only the worker holds open, to its end; the worker has written its label as
owner to it. A worker that ends in order has removed everything and ends its guard; after `kill -9` the guard ends its
builds and removes its containers at once. If the guard is killed too, the next start on this node does it (owners.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from rollbook.containers.images import reap_builds
from rollbook.containers.owners import Owner, is_dead, reap_leftovers
from rollbook.containers.runtime import Runtime, find_runtime
from rollbook.errors import ContainerError

QUIET_PASSES, PAUSE_S, LIMIT_S = 3, 1.0, 300.0
"""The worker may still be dying when its pipe closes, and a container that was being made appears late."""


def guard(runtime: str) -> None:
    """Wait for the end of the worker, then remove what it left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    label = b""
    while data := os.read(0, 4096):
        label += data
    asyncio.run(_clean_up(find_runtime(runtime), label))


async def _clean_up(runtime: Runtime, label: bytes) -> None:
    """Remove what is left until there is nothing, and no command of the worker that could still make something."""
    deadline, quiet = time.monotonic() + LIMIT_S, 0
    while quiet < QUIET_PASSES and time.monotonic() < deadline:
        await asyncio.sleep(PAUSE_S / 5)
        found: int | None = None
        with suppress(ContainerError):
            found = await reap_builds(runtime) + len(await reap_leftovers(runtime))
        if found != 0 or not _has_ended(label) or is_named_by_a_process(label):
            quiet = 0
        else:
            quiet += 1
            await asyncio.sleep(PAUSE_S)


def _has_ended(label: bytes) -> bool:
    owner = Owner.from_label(label.decode())
    return owner is None or is_dead(owner, Owner.current())


def is_named_by_a_process(label: bytes) -> bool:
    """Return whether the command line of a process has a label: it is making something with it.

    The clients of the runtime outlive a worker that is killed.
    """
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if label and label in path.read_bytes():
                return True
    return False


if __name__ == "__main__":
    guard(sys.argv[1])
