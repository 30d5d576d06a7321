"""A process and everything beneath it, measured: wall time, processor time, resident memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
EVERY_S = 0.05
FIRST_S, FIRST_LOOKS = 0.01, 20
"""The first looks are closer together: a short program ends between two others."""


@dataclass(frozen=True)
class Usage:
    """What a whole process tree took."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    output: str


class Tree:
    """Looks at a process and its descendants until told to stop.

    The kernel adds a child's time to its parent's only when the parent waits for it, so the last look at each
    process is kept as well and the larger sum counts.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.peak_bytes = 0
        self.cpu_s: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        looks = 0
        while not self._stop.wait(FIRST_S if looks < FIRST_LOOKS else EVERY_S):
            self._look()
            looks += 1

    def _look(self) -> None:
        stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
        alive = [pid for pid in _beneath(self.root, stats) if pid in stats]
        for pid in alive:
            self.cpu_s[pid] = stats[pid][1]
        self.peak_bytes = max(self.peak_bytes, sum(stats[pid][2] for pid in alive))


def members(root: int) -> set[int]:
    """A process and its descendants, as they are now."""
    return _beneath(root, {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None})


def _beneath(root: int, stats: dict[int, tuple[int, float, int]]) -> set[int]:
    found = {root}
    for pid in sorted(stats):  # parents have smaller pids, but for a wrap of the counter
        if stats[pid][0] in found:
            found.add(pid)
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[int, float, int] | None:
    """The parent, the processor seconds and the resident bytes of a process; None once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE


def measure(command: list[str], cwd: str | None = None) -> Usage:
    """Run a command to its end and say what its whole tree took; one that fails is an error with its last words."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begun = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=errors, cwd=cwd)
        tree = Tree(child.pid)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - begun
        tree.stop()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} exited {child.returncode}: {_text(errors)[-2000:]}")
        cpu = max(usage.ru_utime + usage.ru_stime, sum(tree.cpu_s.values()))
        return Usage(wall, cpu, tree.peak_bytes / 2**20, _text(output))


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
