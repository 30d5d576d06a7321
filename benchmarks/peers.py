"""Rollbook beside its peers: the same mock endpoint, the same tasks, the same concurrency, in turns.

make bench-peers                                  every peer that is installed by the target; writes RESULTS.md
python benchmarks/peers.py --peers build/peers    the same with environments that exist; --quick for less

A peer's environment is a folder under `--peers` with its name; a missing one is left out, loudly. Every figure is of a
whole process tree, with its start, and stands beside Rollbook's of the same round. A run has as many rollouts as
`--seconds` allow, at most `--rollouts`: slow ones get fewer.
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
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

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
    has_reader: bool = False


PEERS = (
    Peer(
        "inspect_ai",
        "inspect_ai",
        "inspect_program.py",
        ("single", "tools", "code"),
        "code runs in its `local` sandbox: a plain subprocess without isolation or limits on memory",
        has_reader=True,
    ),
    Peer("verifiers", "verifiers", "verifiers_program.py", ("single", "tools"), "0.3: from 0.4 on a process a rollout"),
    Peer("lm-eval", "lm_eval", "lm_eval_program.py", ("single",), "one call a task; no tools, no sandbox"),
)


@dataclass
class Measured:
    """What the runs of one program came to, on one kind of task."""

    rollouts: int
    usages: list[Usage] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)
    reads: list[Usage] = field(default_factory=list)

    def median(self, what: str) -> float:
        values = {
            "rate": [self.rollouts / usage.wall_s for usage in self.usages],
            "cpu": [1000 * usage.cpu_s / self.rollouts for usage in self.usages],
            "memory": [usage.peak_mb for usage in self.usages],
            "disk": [size / self.rollouts / 1000 for size in self.disk],
        }
        return statistics.median(values[what])

    @property
    def spread(self) -> str:
        rates = sorted(self.rollouts / usage.wall_s for usage in self.usages)
        return f"{rates[0]:.0f} to {rates[-1]:.0f}"


class Bench:
    """Runs programs on kinds of tasks, each into a folder of its own."""

    def __init__(self, folder: Path, peers: Path) -> None:
        self._folder, self._peers, self._number = folder, peers, 0

    def python(self, peer: Peer) -> Path:
        return self._peers / peer.name / "bin" / "python"

    def run(self, peer: Peer | None, kind: str, url: str, measured: Measured) -> None:
        """Run a program once (None: Rollbook), read its result back where there is a reader, and add what that took."""
        self._number += 1
        out = self._folder / f"{kind}-{self._number}"
        measured.usages.append(self._measure(peer, kind, url, measured.rollouts, out))
        measured.disk.append(sum(path.stat().st_size for path in out.rglob("*") if path.is_file()))
        if peer is None or peer.has_reader:
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
        for _ in range(rounds):
            for name, program in programs.items():
                bench.run(program, kind, url, measured[name])
                took = measured[name].usages[-1].wall_s
                print(f"peers: {kind}, {name}: {measured[name].rollouts} in {took:.1f} s", file=sys.stderr)
    return measured


def start_up(bench: Bench, peers: list[Peer], rounds: int) -> dict[str, list[float]]:
    """Return the processor seconds of one rollout, from nothing to its result on disk."""
    found: dict[str, list[float]] = {}
    with endpoint(20) as url:
        for _ in range(rounds):
            for peer in (None, *peers):
                usage = run_once(bench, peer, "single", url, 1)
                found.setdefault(peer.name if peer else "Rollbook", []).append(usage.cpu_s)
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
            trials = {"Rollbook": run_rollbook(task, folder), "harbor": run_harbor(str(harbor), task, folder)}
            for program, trial in trials.items():
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
    yield "| | wall s each (lowest to highest) | CPU s each | beside Rollbook |"
    yield "| --- | --- | --- | --- |"
    ours = statistics.median(trial.cpu_s for trial in trials["Rollbook"])
    for name, each in trials.items():
        walls, cpu = sorted(trial.wall_s for trial in each), statistics.median(trial.cpu_s for trial in each)
        middle = statistics.median(walls)
        yield f"| {name} | {middle:.1f} ({walls[0]:.1f} to {walls[-1]:.1f}) | {cpu:.1f} | {cpu / ours:.1f}x |"


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
        if each.reads:
            wall, cpu = (
                1000 * statistics.median(getattr(usage, what) for usage in each.reads) / each.rollouts
                for what in ("wall_s", "cpu_s")
            )
            memory = statistics.median(usage.peak_mb for usage in each.reads)
            yield f"| {name} | {each.rollouts} | {wall:.2f} | {cpu:.2f} | {memory:.0f} |"


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
    yield "| | rollouts | a second (lowest to highest) | CPU ms each | beside Rollbook | peak MB | KB on disk each |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, each in measured.items():
        beside = each.median("cpu") / ours.median("cpu")
        yield (
            f"| {name} | {each.rollouts} | {each.median('rate'):.0f} ({each.spread}) | {each.median('cpu'):.2f} "
            f"| {beside:.1f}x | {each.median('memory'):.0f} | {each.median('disk'):.2f} |"
        )


def read_version(python: Path | str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package.replace('_', '-')!r}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def write_results(
    versions: list[str], peers: list[Peer], tables: list[str], starts: dict[str, list[float]], rounds: int
) -> None:
    """Write RESULTS.md."""
    lines = [
        "# Rollbook beside its peers",
        "",
        f"Written by `make bench-peers` on {datetime.now(UTC):%Y-%m-%d}: {', '.join(versions)}; Python "
        f"{platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores. The endpoint "
        f"is `benchmarks/mock.py` with 20 ms a call, the concurrency is {CONCURRENCY}. Programs ran in turns; figures "
        f"are medians of {rounds} rounds, of whole process trees with their start.",
        *tables,
        "\n### start-up: one rollout, from nothing to its result on disk\n",
        "| | CPU s | beside Rollbook |",
        "| --- | --- | --- |",
    ]
    ours = statistics.median(starts["Rollbook"])
    for name, each in starts.items():
        lines.append(f"| {name} | {statistics.median(each):.2f} | {statistics.median(each) / ours:.1f}x |")
    lines += ["", *(f"- {peer.name}: {peer.note}." for peer in peers), ""]
    RESULTS.write_text("\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path("build/peers"), help="the folder of their environments")
    parser.add_argument("--rollouts", type=int, default=10_000, help="at most so many a run")
    parser.add_argument("--seconds", type=float, default=60.0, help="about so long a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="1,000 rollouts or 10 seconds, one round, nothing is written"
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
        versions = [f"Rollbook {read_version(sys.executable, 'rollbook')}"]
        versions += [f"{peer.name} {read_version(bench.python(peer), peer.package)}" for peer in peers]
        harbor = options.peers.absolute() / "harbor" / "bin" / "harbor"
        if harbor.exists() and shutil.which("podman"):
            tables += describe_trials(run_trials(harbor, 1 if options.quick else options.trials))
            versions.append(f"harbor {read_version(harbor.with_name('python'), 'harbor')}")
        else:
            print("peers: HARBOR OR PODMAN IS NOT INSTALLED: no trials in containers", file=sys.stderr)
        if options.gym_python:
            load = gym.Load(1000, 200, rounds=1) if options.quick else gym.Load()
            tables += describe_gym(load, options.gym_python)
            versions.append(f"NeMo Gym {read_version(options.gym_python, 'nemo_gym')}")
        else:
            print("peers: NEMO GYM IS NOT INSTALLED (--gym-python): left out", file=sys.stderr)
        if not options.quick:
            tables += run_many(bench, options.many)
        starts = start_up(bench, peers, rounds)
        print("\n".join(tables))
        print({name: round(statistics.median(each), 2) for name, each in starts.items()})
        if not options.quick:
            write_results(versions, peers, tables, starts, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
