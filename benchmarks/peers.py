"""Rollbook beside its peers: the same mock endpoint, the same tasks, the same concurrency, in turns.

make bench-peers                                  every peer that is installed by the target; writes RESULTS.md
python benchmarks/peers.py --peers build/peers    the same with environments that exist; --quick for less

A peer's environment is a folder under `--peers` with its name; a missing one is left out, loudly. Every figure is of a
whole process tree, with its start, and stands beside Rollbook's of the same round. A run has as many rollouts as
`--seconds` allow, at most `--rollouts`: slow ones get fewer.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

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


PEERS = (
    Peer(
        "inspect_ai",
        "inspect_ai",
        "inspect_program.py",
        ("single", "tools", "code"),
        "code runs in its `local` sandbox: a plain subprocess without isolation or limits on memory",
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

    def run(self, peer: Peer | None, kind: str, url: str, rollouts: int) -> tuple[Usage, int]:
        """Run a program once (None: Rollbook); return what it took and the bytes it wrote."""
        self._number += 1
        out = self._folder / f"{kind}-{self._number}"
        command = self._command(peer, kind, url, rollouts, out)
        usage = measure([str(part) for part in command])
        scored = int(usage.output.split()[-1])
        if scored != rollouts:
            raise SystemExit(f"peers: {peer.name if peer else 'rollbook'}, {kind}: {scored} of {rollouts} are right")
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        shutil.rmtree(out)
        return usage, size

    def _command(self, peer: Peer | None, kind: str, url: str, rollouts: int, out: Path) -> list[object]:
        if peer:
            return [self.python(peer), PROGRAMS / peer.program, kind, url, rollouts, CONCURRENCY, out]
        return [sys.executable, PROGRAMS / "rollbook_program.py", kind, url, rollouts, CONCURRENCY, out]


def compare(bench: Bench, kind: str, peers: list[Peer], limits: tuple[int, float], rounds: int) -> dict[str, Measured]:
    """Run all programs in turns; the number of rollouts of each follows from a pilot run."""
    most, seconds = limits
    with endpoint(20, CODE if kind == "code" else "") as url:
        programs: dict[str, Peer | None] = {"Rollbook": None, **{peer.name: peer for peer in peers}}
        measured = {}
        for name, program in programs.items():
            start = bench.run(program, kind, url, 1)[0].wall_s
            pilot = max(bench.run(program, kind, url, PILOT)[0].wall_s - start, 0.01)
            measured[name] = Measured(max(PILOT, min(most, round(PILOT * seconds / pilot))))
        for _ in range(rounds):
            for name, program in programs.items():
                usage, size = bench.run(program, kind, url, measured[name].rollouts)
                measured[name].usages.append(usage)
                measured[name].disk.append(size)
                print(f"peers: {kind}, {name}: {measured[name].rollouts} in {usage.wall_s:.1f} s", file=sys.stderr)
    return measured


def start_up(bench: Bench, peers: list[Peer], rounds: int) -> dict[str, list[float]]:
    """Return the processor seconds of one rollout, from nothing to its result on disk."""
    found: dict[str, list[float]] = {}
    with endpoint(20) as url:
        for _ in range(rounds):
            for peer in (None, *peers):
                usage, _ = bench.run(peer, "single", url, 1)
                found.setdefault(peer.name if peer else "Rollbook", []).append(usage.cpu_s)
    return found


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


def write_results(bench: Bench, peers: list[Peer], tables: list[str], starts: dict[str, list[float]]) -> None:
    """Write RESULTS.md."""
    versions = [f"Rollbook {read_version(sys.executable, 'rollbook')}"]
    versions += [f"{peer.name} {read_version(bench.python(peer), peer.package)}" for peer in peers]
    lines = [
        "# Rollbook beside its peers",
        "",
        f"Written by `make bench-peers` on {datetime.now(UTC):%Y-%m-%d}: {', '.join(versions)}; Python "
        f"{platform.python_version()}, {platform.system()} {platform.machine()}, two cores. The endpoint is "
        f"`benchmarks/mock.py` with 20 ms a call, the concurrency is {CONCURRENCY}. Programs ran in turns; figures are "
        "medians of whole process trees, with their start.",
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
    options = parser.parse_args()
    limits = (1000, 10.0) if options.quick else (options.rollouts, options.seconds)
    rounds = 1 if options.quick else options.rounds
    with tempfile.TemporaryDirectory(prefix="rollbook-peers-") as folder:
        bench = Bench(Path(folder), options.peers)
        peers = [peer for peer in PEERS if bench.python(peer).exists()]
        for peer in PEERS:
            if peer not in peers:
                print(f"peers: {peer.name.upper()} IS NOT INSTALLED under {options.peers}: left out", file=sys.stderr)
        tables: list[str] = []
        for kind in KINDS:
            tables += describe(kind, compare(bench, kind, [p for p in peers if kind in p.kinds], limits, rounds))
        starts = start_up(bench, peers, rounds)
        print("\n".join(tables))
        print({name: round(statistics.median(each), 2) for name, each in starts.items()})
        if not options.quick:
            write_results(bench, peers, tables, starts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
