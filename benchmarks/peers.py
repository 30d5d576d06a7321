"""Rollbook beside its peers: the same mock endpoint, the same tasks, the same concurrency, in turns.

make bench-peers                                           every peer that is installed by the target; writes RESULTS.md
.venv/bin/python benchmarks/peers.py --peers build/peers    the same with environments that exist; --quick for less

A peer's environment is a folder under `--peers` with its name; a missing one is left out, loudly. Every figure is of a
whole process tree, with its start, and stands beside Rollbook's of the same round; each round starts with another
program. A run has as many rollouts as `--seconds` allow, at most `--rollouts`: slow ones get fewer.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cpu import whole_tree
from harbor_tasks import TASKS, Trial, clean_up, copy_task, run_harbor, run_rollbook

import gym
from engine import endpoint
from processes import Usage, measure

PROGRAMS = Path(__file__).with_name("peer_programs")
RESULTS = Path(__file__).with_name("RESULTS.md")
CONCURRENCY = 128
PILOT = 100
CODE = "```python\ndef add(a, b):\n    return a + b\n```"
Item = TypeVar("Item")
KINDS = {
    "single": "one call, the answer compared",
    "tools": "four calls of a tool, then the answer: five model calls",
    "code": "one call, the function run against a test",
}


@dataclass(frozen=True)
class Peer:
    """A package, its program, and which tasks it runs."""

    name: str
    package: str
    program: str
    kinds: tuple[str, ...]
    note: str = ""


PEERS = (
    Peer(
        "inspect_ai",
        "inspect_ai",
        "inspect_program.py",
        ("single", "tools", "code"),
        "code runs in its `local` sandbox: a plain subprocess without isolation or limits on memory",
    ),
    Peer("verifiers", "verifiers", "verifiers_program.py", ("single", "tools"), "0.3: from 0.4 on a process a rollout"),
    Peer(
        "lm-eval",
        "lm_eval",
        "lm_eval_program.py",
        ("single",),
        "one call a task; no tools, no sandbox; it has no reader of its results, so `json` reads the lines of its file",
    ),
)


@dataclass
class Measured:
    """What the runs of one program came to, on one kind of task."""

    rollouts: int
    usages: list[Usage] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)
    reads: list[Usage] = field(default_factory=list)

    def values(self, what: str) -> list[float]:
        """Return a figure of each run: `rate`, `cpu` (ms a rollout), `memory` (MB) or `disk` (KB a rollout)."""
        match what:
            case "rate":
                return [self.rollouts / usage.wall_s for usage in self.usages]
            case "cpu":
                return [1000 * usage.cpu_s / self.rollouts for usage in self.usages]
            case "memory":
                return [usage.peak_mb for usage in self.usages]
            case _:
                return [size / self.rollouts / 1000 for size in self.disk]

    def median(self, what: str) -> float:
        return statistics.median(self.values(what))

    def describe(self, what: str, digits: int = 0) -> str:
        """Return the median of a figure, with its lowest and highest."""
        return describe_spread(self.values(what), digits)


def describe_spread(values: list[float], digits: int = 0) -> str:
    """Return the median, and in brackets the lowest and the highest where there are several."""
    middle, low, high = (f"{each:.{digits}f}" for each in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})" if len(values) > 1 else middle


def rotate(items: Iterable[Item], number: int) -> list[Item]:
    """Return the items in the order of a round: each round starts with the next one."""
    given = list(items)
    start = number % len(given)
    return given[start:] + given[:start]


class Bench:
    """Runs programs on kinds of tasks, each into a folder of its own."""

    def __init__(self, folder: Path, peers: Path) -> None:
        self._folder, self._peers, self._number = folder, peers, 0

    def python(self, peer: Peer) -> Path:
        return self._peers / peer.name / "bin" / "python"

    def run(self, peer: Peer | None, kind: str, url: str, measured: Measured) -> None:
        """Run a program once (None: Rollbook), read the result of single calls back, and add what that took."""
        self._number += 1
        out = self._folder / f"{kind}-{self._number}"
        measured.usages.append(self._measure(peer, kind, url, measured.rollouts, out))
        measured.disk.append(sum(path.stat().st_size for path in out.rglob("*") if path.is_file()))
        if kind == "single":
            measured.reads.append(self._measure(peer, "read", url, measured.rollouts, out))
        shutil.rmtree(out)

    def _measure(self, peer: Peer | None, kind: str, url: str, rollouts: int, out: Path) -> Usage:
        command = self._command(peer, kind, url, rollouts, out)
        # The group counts processes that end between two looks too, such as guests of a sandbox.
        with whole_tree() as (clock, is_whole):
            before, own = clock(), _own_cpu_s()
            usage = measure([str(part) for part in command])
            if is_whole:
                usage = replace(usage, cpu_s=clock() - before - (_own_cpu_s() - own))
        scored = int(usage.output.split()[-1])
        if scored != rollouts:
            raise SystemExit(f"peers: {peer.name if peer else 'rollbook'}, {kind}: {scored} of {rollouts} are right")
        return usage

    def _command(self, peer: Peer | None, kind: str, url: str, rollouts: int, out: Path) -> list[object]:
        if peer:
            return [self.python(peer), PROGRAMS / peer.program, kind, url, rollouts, CONCURRENCY, out]
        return [sys.executable, PROGRAMS / "rollbook_program.py", kind, url, rollouts, CONCURRENCY, out]


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_once(bench: Bench, peer: Peer | None, kind: str, url: str, rollouts: int) -> Usage:
    """Run a program once, and return what it took."""
    measured = Measured(rollouts)
    bench.run(peer, kind, url, measured)
    return measured.usages[0]


def compare(bench: Bench, kind: str, peers: list[Peer], limits: tuple[int, float], rounds: int) -> dict[str, Measured]:
    """Run all programs in turns; the number of rollouts of each follows from a pilot run."""
    most, seconds = limits
    with endpoint(20, CODE if kind == "code" else "") as url:
        programs: dict[str, Peer | None] = {"Rollbook": None, **{peer.name: peer for peer in peers}}
        measured = {}
        for name, program in programs.items():
            start = run_once(bench, program, kind, url, 1).wall_s
            pilot = max(run_once(bench, program, kind, url, PILOT).wall_s - start, 0.01)
            measured[name] = Measured(max(PILOT, min(most, round(PILOT * seconds / pilot))))
        for number in range(rounds):
            for name, program in rotate(programs.items(), number):
                bench.run(program, kind, url, measured[name])
                took = measured[name].usages[-1].wall_s
                print(f"peers: {kind}, {name}: {measured[name].rollouts} in {took:.1f} s", file=sys.stderr)
    return measured


def start_up(bench: Bench, peers: list[Peer], rounds: int) -> dict[str, list[float]]:
    """Return the processor seconds of one rollout, from nothing to its result on disk."""
    found: dict[str, list[float]] = {name: [] for name in ("Rollbook", *(peer.name for peer in peers))}
    with endpoint(20) as url:
        for number in range(rounds):
            for peer in rotate((None, *peers), number):
                usage = run_once(bench, peer, "single", url, 1)
                found[peer.name if peer else "Rollbook"].append(usage.cpu_s)
    return found


TRIAL = "write-word"


def run_trials(harbor: Path, count: int) -> dict[str, list[Trial]]:
    """Run the oracle of one task folder in containers, in Rollbook and in Harbor in turns."""
    found: dict[str, list[Trial]] = {"Rollbook": [], "harbor": []}
    with tempfile.TemporaryDirectory(prefix="rollbook-trials-") as name:
        task = copy_task(TASKS / TRIAL, Path(name))
        for number in range(count + 1):
            folder = Path(name) / str(number)
            folder.mkdir()
            for program in rotate(found, number):
                trial = run_harbor(str(harbor), task, folder) if program == "harbor" else run_rollbook(task, folder)
                if trial.problem or not trial.rewards:
                    raise SystemExit(f"peers: a trial in {program} failed: {trial.problem}")
                if number:  # the first one builds the image
                    found[program].append(trial)
        clean_up(task)
    return found


def describe_trials(trials: dict[str, list[Trial]]) -> Iterator[str]:
    """Yield the table of the trials in containers."""
    count = len(trials["Rollbook"])
    yield f"\n### containers: the oracle of one task folder, {count} trials one by one; the image exists\n"
    yield "| | wall s each | CPU s each | beside Rollbook |"
    yield "| --- | --- | --- | --- |"
    ours = statistics.median(trial.cpu_s for trial in trials["Rollbook"])
    for name, each in trials.items():
        walls, cpus = [trial.wall_s for trial in each], [trial.cpu_s for trial in each]
        beside = statistics.median(cpus) / ours
        yield f"| {name} | {describe_spread(walls, 1)} | {describe_spread(cpus, 1)} | {beside:.1f}x |"


def describe_gym(load: gym.Load, python: Path) -> Iterator[str]:
    """Run multiple choice rows in Rollbook and in NeMo Gym; yield the table."""
    yield "\n### NeMo Gym: its multiple choice rows and servers\n"
    yield (
        f"The middle of {load.rounds} rounds; concurrency {load.concurrency}, {load.latency_ms:.0f} ms a call; "
        f"{load.rollouts:,} rollouts of Rollbook, {load.gym_rollouts:,} of NeMo Gym. Servers were running.\n"
    )
    yield "| | rollouts a second | CPU ms each | beside Rollbook | MB | servers ready after s |"
    yield "| --- | --- | --- | --- | --- | --- |"
    results = gym.compare(load, python)
    for name, result in zip(("Rollbook", "Rollbook, `rollbook serve` over HTTP", "NeMo Gym"), results, strict=True):
        if result:
            beside = result.cpu_ms / results[0].cpu_ms
            yield (
                f"| {name} | {result.rate:.0f} | {result.cpu_ms:.2f} | {beside:.1f}x | {result.memory_mb:.0f} "
                f"| {result.ready_s:.1f} |"
            )


def describe_reads(measured: dict[str, Measured]) -> Iterator[str]:
    """Yield the table of readers: a new process that reads every rollout with its reward from the result on disk."""
    yield "\n### log reader: a new process reads every rollout with its reward from the result\n"
    yield "| | rollouts | ms each | CPU ms each | peak MB |"
    yield "| --- | --- | --- | --- | --- |"
    for name, each in measured.items():
        wall, cpu = (
            describe_spread([1000 * getattr(usage, what) / each.rollouts for usage in each.reads], 2)
            for what in ("wall_s", "cpu_s")
        )
        memory = describe_spread([usage.peak_mb for usage in each.reads])
        yield f"| {name} | {each.rollouts} | {wall} | {cpu} | {memory} |"


def run_many(bench: Bench, rollouts: int) -> Iterator[str]:
    """Yield what a long run of Rollbook alone took."""
    measured = Measured(rollouts)
    with endpoint(20) as url:
        bench.run(None, "single", url, measured)
    usage, read = measured.usages[0], measured.reads[0]
    yield f"\n### {rollouts:,} rollouts of Rollbook alone, one call each\n"
    yield (
        f"{usage.wall_s:.0f} s ({measured.median('rate'):.0f} a second), {measured.median('cpu'):.2f} ms of CPU each, "
        f"peak memory {usage.peak_mb:.0f} MB, {measured.median('disk'):.2f} KB on disk each. Reading all "
        f"rollouts back took {read.wall_s:.0f} s and {read.peak_mb:.0f} MB."
    )


def describe(kind: str, measured: dict[str, Measured]) -> Iterator[str]:
    """Yield the table of a kind of task."""
    ours = measured["Rollbook"]
    yield f"\n### {kind}: {KINDS[kind]}\n"
    yield "| | rollouts | a second | CPU ms each | beside Rollbook | peak MB | KB on disk each |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, each in measured.items():
        beside = each.median("cpu") / ours.median("cpu")
        yield (
            f"| {name} | {each.rollouts} | {each.describe('rate')} | {each.describe('cpu', 2)} "
            f"| {beside:.1f}x | {each.describe('memory')} | {each.median('disk'):.2f} |"
        )


def name_version(name: str, python: Path | str, package: str) -> str:
    """Return a program with its version, and with that of its Python where that is not ours."""
    code = f"import platform; from importlib.metadata import version; print(version({package.replace('_', '-')!r}))"
    command = [str(python), "-c", f"{code}; print(platform.python_version())"]
    found, its_python = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return f"{name} {found}" + (f" (Python {its_python})" if its_python != platform.python_version() else "")


def describe_machine() -> str:
    """Return the system, the processor and the memory of this machine."""
    models = (
        line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "name" in line
    )
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    processor = f"{os.cpu_count()} cores of {next(models, 'an unnamed processor')}"
    return f"{platform.system()} {platform.machine()}, {processor}, {memory_gb:.0f} GB of memory"


def describe_all(
    versions: list[str],
    peers: list[Peer],
    tables: list[str],
    starts: dict[str, list[float]],
    rounds: int,
    limits: tuple[int, float],
) -> str:
    """Return the page of results."""
    most, seconds = limits
    lines = [
        "# Rollbook beside its peers",
        "",
        f"Written by `make bench-peers` on {datetime.now(UTC):%Y-%m-%d}: {', '.join(versions)}; Python "
        f"{platform.python_version()}, {describe_machine()}. The endpoint is `benchmarks/mock.py` with 20 ms a call, "
        f"the concurrency is {CONCURRENCY}. A run of single, tools or code has at most {most:,} rollouts, and fewer "
        f"where these would take more than {seconds:.0f} s, by a first run of {PILOT}; but at least {PILOT}. Programs "
        f"ran in turns, {rounds} rounds, and each round started with the next program. Figures are medians with the "
        "lowest and the highest in brackets, of whole process trees with their start.",
        *tables,
        "\n### start-up: one rollout, from nothing to its result on disk\n",
        "| | CPU s | beside Rollbook |",
        "| --- | --- | --- |",
    ]
    ours = statistics.median(starts["Rollbook"])
    for name, each in starts.items():
        lines.append(f"| {name} | {describe_spread(each, 2)} | {statistics.median(each) / ours:.1f}x |")
    return "\n".join([*lines, "", *(f"- {peer.name}: {peer.note}." for peer in peers), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path("build/peers"), help="the folder of their environments")
    parser.add_argument("--rollouts", type=int, default=10_000, help="at most so many a run")
    parser.add_argument("--seconds", type=float, default=60.0, help="about so long a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="1,000 rollouts or 10 seconds, one round; prints, and writes nothing"
    )
    parser.add_argument("--many", type=int, default=1_000_000, help="rollouts of a long run of Rollbook alone")
    parser.add_argument("--trials", type=int, default=10, help="trials in containers, with harbor and podman")
    parser.add_argument("--gym-python", type=Path, help="a Python that has NeMo Gym installed")
    options = parser.parse_args()
    limits = (1000, 10.0) if options.quick else (options.rollouts, options.seconds)
    rounds = 1 if options.quick else options.rounds
    with tempfile.TemporaryDirectory(prefix="rollbook-peers-") as folder:
        bench = Bench(Path(folder), options.peers.absolute())
        peers = [peer for peer in PEERS if bench.python(peer).exists()]
        for peer in PEERS:
            if peer not in peers:
                print(f"peers: {peer.name.upper()} IS NOT INSTALLED under {options.peers}: left out", file=sys.stderr)
        tables: list[str] = []
        singles: dict[str, Measured] = {}
        for kind in KINDS:
            measured = compare(bench, kind, [p for p in peers if kind in p.kinds], limits, rounds)
            singles = singles or measured
            tables += describe(kind, measured)
        tables += describe_reads(singles)
        versions = [name_version("Rollbook", sys.executable, "rollbook")]
        versions += [name_version(peer.name, bench.python(peer), peer.package) for peer in peers]
        harbor = options.peers.absolute() / "harbor" / "bin" / "harbor"
        if harbor.exists() and shutil.which("podman"):
            tables += describe_trials(run_trials(harbor, 1 if options.quick else options.trials))
            versions.append(name_version("harbor", harbor.with_name("python"), "harbor"))
        else:
            print("peers: HARBOR OR PODMAN IS NOT INSTALLED: no trials in containers", file=sys.stderr)
        if options.gym_python:
            load = gym.Load(1000, 200, rounds=1) if options.quick else gym.Load()
            tables += describe_gym(load, options.gym_python)
            versions.append(name_version("NeMo Gym", options.gym_python, "nemo_gym"))
        else:
            print("peers: NEMO GYM IS NOT INSTALLED (--gym-python): left out", file=sys.stderr)
        if not options.quick:
            tables += run_many(bench, options.many)
        starts = start_up(bench, peers, rounds)
        page = describe_all(versions, peers, tables, starts, rounds, limits)
        print(page)
        if not options.quick:
            RESULTS.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
