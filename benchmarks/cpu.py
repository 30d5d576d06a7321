"""Processor time of this process and of everything it starts, counted by the kernel where a control group may be made.

Some programs end without waiting for what they have started, bubblewrap for one: only a group counts that.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
WAYS = [
    (Path("/sys/fs/cgroup/cpuacct"), "cpuacct.usage"),
    (Path("/sys/fs/cgroup/cpu,cpuacct"), "cpuacct.usage"),
    (Path("/sys/fs/cgroup/unified"), "cpu.stat"),
    (Path("/sys/fs/cgroup"), "cpu.stat"),
]
Clock = Callable[[], float]


@contextmanager
def whole_tree() -> Iterator[tuple[Clock, bool]]:
    """A clock in seconds, and whether nothing escapes it."""
    for base, file in WAYS:
        group = base / f"rollbook-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            yield lambda: _usage(group / file), True  # noqa: B023 - used up before the next turn
        finally:
            with suppress(OSError):
                (base / "cgroup.procs").write_text(str(os.getpid()))
                group.rmdir()
        return
    yield lambda: sum(_tree_cpu(os.getpid()).values()), False


def _usage(file: Path) -> float:
    text = file.read_text()
    return int(text.split()[1]) / 1e6 if file.name == "cpu.stat" else int(text) / 1e9


def _tree_cpu(root: int) -> dict[int, float]:
    stats: dict[int, tuple[int, float]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        stats[int(name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    below = {root}
    while found := {pid for pid, (parent, _) in stats.items() if parent in below} - below:
        below |= found
    used = {pid: stats[pid][1] for pid in below if pid != root}
    mine = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {**used, root: sum(usage.ru_utime + usage.ru_stime for usage in mine)}
