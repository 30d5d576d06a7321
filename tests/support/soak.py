"""Run many attacks at once, and count what they leave: processes, descriptors, mounts, temporary files, control
groups."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from rollbook.processes import find_members
from rollbook.sandbox import Limits, Sandbox, cgroups
from rollbook.sandbox.cgroups import list_cpu_folders, list_memory_folders
from support.alive import eventually

ATTACKS = Path(__file__).parent.parent / "sandbox" / "attacks"
LIMITS = Limits(seconds=0.1, wall_seconds=0.4, memory_mb=64, files_mb=4, output_kb=16)
PAGE = os.sysconf("SC_PAGE_SIZE")
SETTLE_S = 20.0
BATCH = 100


class Resources(NamedTuple):
    """The resources of this process and its descendants."""

    processes: int
    descriptors: int
    mounts: int
    files: int
    groups: int

    def within(self, other: Resources) -> bool:
        """Return whether no count is larger."""
        return all(one <= two for one, two in zip(self, other, strict=True))


class SoakResult(NamedTuple):
    """The outcome of all attacks."""

    statuses: Counter[str]
    before: Resources
    after: Resources
    growth: float
    """Growth of this process's memory between a tenth of the runs and the end."""


def count_resources() -> Resources:
    """Count the resources."""
    below = [process.pid for process in find_members(os.getpid()) if process.pid != os.getpid()]
    temporary = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(cgroups.owner_prefix())]
    bases = [*(base for base, _ in list_memory_folders()), *list_cpu_folders()]
    groups = [name for base in bases for name in list_names(base) if name.startswith(cgroups.owner_prefix())]
    mounts = max((count_mounts(pid) for pid in below), default=0)
    return Resources(len(below), len(os.listdir("/proc/self/fd")), mounts, len(temporary), len(groups))


def list_names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.exists() else []


def count_mounts(pid: int) -> int:
    """Count the mounts of a process, without those of containers: other programs start and stop them meanwhile."""
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    except OSError:
        return 0
    return sum("/containers/" not in line for line in lines)


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def choose_programs(count: int, costly: float, seed: int) -> list[tuple[str, Limits]]:
    """Return this many attacks in a random order; `costly` is the share of those that run to their limit."""
    rng, attacks = random.Random(seed), sorted(ATTACKS.glob("*.py"))
    assert attacks, f"no attacks in {ATTACKS}"
    cheap = [path for path in attacks if "timeout" not in path.read_text().partition("\n")[0]]
    slow = [path for path in attacks if path not in cheap]
    chosen = [rng.choice(slow if rng.random() < costly else cheap) for _ in range(count)]
    return [(path.read_text(), _limits(path)) for path in chosen]


def _limits(path: Path) -> Limits:
    second = path.read_text().splitlines()[1]
    many = int(second.removeprefix("# processes:")) if second.startswith("# processes:") else 1
    return msgspec.structs.replace(LIMITS, processes=many)


def soak(count: int, at_once: int, costly: float, seed: int = 0) -> SoakResult:
    """Run the attacks, and compare the resources before and after."""
    statuses: Counter[str] = Counter()
    with Sandbox(LIMITS, size=at_once) as box, ThreadPoolExecutor(at_once) as pool:

        def run(program: tuple[str, Limits]) -> str:
            result = box.run_sync(program[0], limits=program[1])
            assert "BREACH" not in result.stdout + result.stderr + str(result.error), program[0]
            return result.status

        def run_all(work: list[tuple[str, Limits]]) -> None:
            for first in range(0, len(work), BATCH):  # work that waits in a pool takes memory as well
                statuses.update(pool.map(run, work[first : first + BATCH]))

        work = choose_programs(count, costly, seed)
        warm = max(at_once * 4, count // 10)
        run_all(work[:warm])
        early, before = read_resident_bytes(), count_resources()
        run_all(work[warm:])
        eventually(lambda: count_resources().within(before), SETTLE_S)
        after, late = count_resources(), read_resident_bytes()
        assert box.run_sync("6 * 7").value == "42"
    return SoakResult(statuses, before, after, late / early - 1)
