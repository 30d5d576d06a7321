"""Whether processes live, asked of the kernel."""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Whether a condition comes true before the deadline."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def read_pid(path: Path, within_s: float = 10.0) -> int:
    """The pid that a process writes to a file when it is up."""
    assert eventually(lambda: path.exists() and path.read_text().endswith("\n"), within_s), f"{path} was not written"
    return int(path.read_text())


def open_fds() -> set[str]:
    """The file descriptors this process holds, without those that only garbage of earlier tests keeps open."""
    gc.collect()
    return set(os.listdir("/proc/self/fd"))
