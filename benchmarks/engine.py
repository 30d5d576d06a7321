"""What the engine costs: ours relative to a bare client on the same endpoint in the same minute, as one table.

.venv/bin/python benchmarks/engine.py             about ten minutes on two cores
.venv/bin/python benchmarks/engine.py --quick     the same at a tenth of the size
.venv/bin/python benchmarks/engine.py --budget    the quick form for CI, beside other work: fails at twice a bound

Overhead has one definition here: from the start of the first rollout to the last seal on disk, beside a bare client on
uvloop in the same minute; and the CPU time of the whole process tree for each rollout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bigbook import big_book

from processes import Usage, measure

HERE = Path(__file__).parent
CONCURRENCY = 128
ROLLBOOK = [sys.executable, "-c", "from rollbook.cli.main import main; main()"]
BASELINE = """
import resource, sys, orjson, subprocess
def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
begun = cpu_s()
subprocess.run(["wc", "-l", *sys.argv[1:]], stdout=subprocess.DEVNULL, check=True)
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        for line in file:
            orjson.loads(line)
print(cpu_s() - begun)
"""
READ_BACK = 200_000
"""Rollouts of the book that is read back: enough for its reading to take several times as long as a start."""


@dataclass(frozen=True)
class Figure:
    """A row of the table: what was measured, what came out, what it has to be."""

    what: str
    value: float
    unit: str
    bound: float | None = None
    at_least: bool = False
    detail: str = ""

    def is_met(self, slack: float = 1.0) -> bool:
        """Return whether the figure is within its bound, or not worse than `slack` times the bound."""
        if self.bound is None:
            return True
        return self.value >= self.bound / slack if self.at_least else self.value <= self.bound * slack

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return ""
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}: {'met' if self.is_met() else 'MISSED'}"


@contextmanager
def endpoint(latency_ms: float, says: str = "") -> Iterator[str]:
    """The URL of a mock endpoint that lives as long as the block."""
    command = [sys.executable, str(HERE / "mock.py"), "--latency-ms", str(latency_ms), "--says", says]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.terminate()


def rows(folder: Path, count: int) -> Path:
    """So many sums, as a file that gsm8k takes."""
    path = folder / f"sums-{count}.jsonl"
    if not path.exists():
        lines = (json.dumps({"question": f"What is {i} + {i + 1}?", "answer": str(2 * i + 1)}) for i in range(count))
        path.write_text("\n".join(lines) + "\n")
    return path


def ours(folder: Path, url: str, tasks: int, samples: int = 1) -> tuple[Path, Usage]:
    """One `rollbook run` of so many tasks; its run directory and what it took."""
    run = folder / f"run-{tasks}-{time.monotonic_ns()}"
    options = ["-m", url, "--model-name", "mock", "-c", CONCURRENCY, "--data", rows(folder, tasks), "-o", run, "--json"]
    options += ["-k", samples]
    usage = measure([*ROLLBOOK, "run", "gsm8k", *map(str, options)])
    return run, usage


def bare(url: str, count: int) -> float:
    """Rollouts per second of the bare client."""
    return count / float(measure_bare(url, count).output)


def measure_bare(url: str, count: int) -> Usage:
    """Run the bare client; its output is the number of seconds that its calls took."""
    command = [sys.executable, str(HERE / "bare.py"), url, "--count", str(count), "--concurrency", str(CONCURRENCY)]
    return measure(command)


def work_seconds(run: Path) -> float:
    """From the start of the first rollout to the last chunk sealed on disk: starting Python is not rolling out."""
    starts = (min(_starts(path)) for path in (run / "journals").glob("*.jsonl") if path.stat().st_size)
    sealed = max(path.stat().st_mtime for path in (run / "done").iterdir())
    return sealed - min(starts)


def _starts(path: Path) -> Iterator[float]:
    with path.open("rb") as lines:
        for line in lines:
            yield json.loads(line)["timing"]["start"]


def throughput(folder: Path, counts: list[int], rounds: int) -> Iterator[Figure]:
    """Rollouts per second relative to the bare client's, taken in turns; processor time of the whole tree."""
    with endpoint(20) as url:
        for count in counts:
            ratios, cpus, walls, rates = [], [], [], []
            for _ in range(rounds):
                before = bare(url, count)
                run, usage = ours(folder, url, count)
                rates.append(count / work_seconds(run))
                ratios.append(rates[-1] / statistics.mean([before, bare(url, count)]))
                cpus.append(1000 * usage.cpu_s / count)
                walls.append(count / usage.wall_s)
                shutil.rmtree(run)
            rate, wall = statistics.median(rates), statistics.median(walls)
            detail = f"{rate:.0f}/s; {wall:.0f}/s with the start and the report"
            yield Figure(
                f"{count} rollouts, relative to the bare client", statistics.median(ratios), "x", 0.70, True, detail
            )
            most = 1.0 if count < LONG_RUN else 0.5  # the start and the report are part of it
            yield Figure(f"{count} rollouts, CPU of the whole tree", statistics.median(cpus), "ms each", most)


LONG_RUN = 5_000
TOOLS = HERE / "peer_programs" / "rollbook_environments.py"
TURNS = 5


def tool_turns(folder: Path, count: int, rounds: int) -> Iterator[Figure]:
    """CPU of one turn of a tool loop (tools in environment processes), above that of one call of the bare client."""
    ours_ms, bare_ms = [], []
    with endpoint(20) as url:
        for _ in range(rounds):
            started, whole = (_run_tools(folder, url, tasks).cpu_s for tasks in (1, count))
            ours_ms.append(1000 * (whole - started) / (count * TURNS))
            started, whole = (measure_bare(url, calls).cpu_s for calls in (1, count * TURNS))
            bare_ms.append(1000 * (whole - started) / (count * TURNS))
    each, call = statistics.median(ours_ms), statistics.median(bare_ms)
    detail = f"{each:.2f} ms; {call:.2f} ms bare"
    yield Figure("a turn of a tool loop, CPU above a bare call", each - call, "ms", 0.35, detail=detail)


def _run_tools(folder: Path, url: str, tasks: int) -> Usage:
    run = folder / f"tools-{tasks}-{time.monotonic_ns()}"
    words = ["run", f"{TOOLS}:Tools?count={tasks}", "-m", url, "--model-name", "mock", "-c", str(CONCURRENCY)]
    usage = measure([*ROLLBOOK, *words, "-o", str(run), "--json"])
    shutil.rmtree(run)
    return usage


def one_task(folder: Path, rounds: int) -> Iterator[Figure]:
    """CPU of `rollbook run` on one task, from nothing to the report, relative to a Python that imports aiohttp."""
    with endpoint(0) as url:
        whole = [ours(folder, url, 1)[1].cpu_s for _ in range(rounds)]
        plain = [_cpu_s("import aiohttp") for _ in range(rounds)]
    run, imports = statistics.median(whole), statistics.median(plain)
    detail = f"{1000 * run:.0f} ms, bare {1000 * imports:.0f} ms"
    yield Figure("`run` on one task, relative to `import aiohttp`", run / imports, "x", 8.0, detail=detail)


FOLLOWED = """
import sys
import rollbook


class Null:
    def open(self, run):
        return ""

    def log_metrics(self, metrics, step):
        pass

    def close(self, result):
        pass


def run(url, data, out, followed):
    ways = {
        "nobody": {},
        "hooks": {"on_rollout": lambda rollout: None, "on_progress": lambda progress: None},
        "a tracker's process": {"log": ["null"]},
    }
    more = {"data": data, "out": out, "concurrency": 128, "model_name": "mock"}
    rollbook.run("gsm8k", url, **more, **ways[followed])


if __name__ == "__main__":
    run(*sys.argv[1:])
"""


def following(folder: Path, count: int, rounds: int) -> Iterator[Figure]:
    """Rollouts per second with hooks, and with a tracker in its process, beside the same run that nobody follows."""
    site = folder / "site"
    about = site / "null-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: null\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rollbook.trackers]\nnull = null_tracker:Null\n")
    (site / "null_tracker.py").write_text(FOLLOWED)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    rates: dict[str, list[float]] = {"nobody": [], "hooks": [], "a tracker's process": []}
    cpus: dict[str, list[float]] = {way: [] for way in rates}
    with endpoint(20) as url:
        for _ in range(rounds):
            for way, found in rates.items():
                run = folder / f"followed-{time.monotonic_ns()}"
                words = [url, str(rows(folder, count)), str(run), way]
                usage = measure([sys.executable, str(site / "null_tracker.py"), *words])
                found.append(count / work_seconds(run))
                cpus[way].append(1000 * usage.cpu_s / count)
                shutil.rmtree(run)
    medians = {way: statistics.median(found) for way, found in rates.items()}
    for way in ("hooks", "a tracker's process"):
        spent, alone = statistics.median(cpus[way]), statistics.median(cpus["nobody"])
        detail = f"{medians[way]:.0f}/s, {spent:.2f} ms of CPU each; {medians['nobody']:.0f}/s, {alone:.2f} ms without"
        ratio = statistics.median(with_ / without for with_, without in zip(rates[way], rates["nobody"], strict=True))
        yield Figure(f"{count} rollouts followed by {way}, beside none", ratio, "x", 0.90, True, detail)


def memory(folder: Path, small: int, large: int) -> Iterator[Figure]:
    """Peak resident memory of the tree at two sizes."""
    tasks = small // 10
    with endpoint(0) as url:
        first, second = (ours(folder, url, tasks, count // tasks)[1] for count in (small, large))
        what = f"memory at {large} rollouts relative to {small}, of {tasks} tasks"
        yield Figure(what, second.peak_mb / first.peak_mb, "x", 1.10, detail=_peaks(first, second))
        first, second = (ours(folder, url, count)[1] for count in (small, large))
        what = f"memory at {large} tasks relative to {small}, one rollout each"
        yield Figure(what, second.peak_mb / first.peak_mb, "x", 1.10, detail=_peaks(first, second))


def _peaks(first: Usage, second: Usage) -> str:
    return f"{first.peak_mb:.0f} MB, then {second.peak_mb:.0f} MB"


def reading(folder: Path, times: int) -> Iterator[Figure]:
    """Resuming a finished book reads all of it: the CPU of that beyond a book of ten, relative to wc and orjson.

    CPU and not wall time, and the lowest of some repeats in turns: other work on the machine changes both least.
    """
    large, tiny = (big_book(folder / f"book-{count}", count, 1).path for count in (READ_BACK, 10))
    journals = [str(path) for path in sorted((large / "journals").glob("*.jsonl"))]
    plain, whole, start = [], [], []
    with endpoint(0) as url:
        for book in (large, tiny):  # not counted: writes the index of the journals, which the report of a run writes
            _resume_cpu_s(book, url)
        for _ in range(times):
            plain.append(float(measure([sys.executable, "-c", BASELINE, *journals]).output))
            start.append(_resume_cpu_s(tiny, url))
            whole.append(_resume_cpu_s(large, url))
    extra = min(whole) - min(start)
    detail = f"{extra:.2f} s of CPU after {min(start):.2f} s to start; {min(plain):.2f} s bare"
    what = f"resume reads {READ_BACK} rollouts, CPU relative to wc and orjson"
    yield Figure(what, extra / min(plain), "x", 5.0, detail=detail)


def _resume_cpu_s(book: Path, url: str) -> float:
    return measure([*ROLLBOOK, "resume", str(book), "-m", url, "--json"]).cpu_s


def start_up(times: int) -> Iterator[Figure]:
    """Processor time of a start, relative to a Python that does nothing."""
    codes = {
        "bare": "pass",
        "import rollbook": "import rollbook",
        "rollbook --help": "from rollbook.cli.main import main; main(['--help'])",
    }
    taken: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(times):
        for name, code in codes.items():
            taken[name].append(_cpu_s(code))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, most in (("import rollbook", 3.0), ("rollbook --help", 15.0)):
        detail = f"{1000 * medians[name]:.0f} ms, bare {1000 * medians['bare']:.0f} ms"
        yield Figure(f"{name}, relative to a bare python", medians[name] / medians["bare"], "x", most, detail=detail)


def _cpu_s(code: str) -> float:
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def show(figures: list[Figure]) -> None:
    """The table."""
    from rollbook.cli.report_tables import format_plain_table

    cells = [[f.what, f"{f.value:.2f} {f.unit}", f.verdict, f.detail] for f in figures]
    print("\n".join(format_plain_table(["figure", "measured", "asked for", "detail"], cells)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rollouts and rounds")
    parser.add_argument("--budget", action="store_true", help="smaller; fails only at twice a bound")
    given = parser.parse_args()
    quick = given.quick or given.budget
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name:
        folder = Path(name)
        try:
            figures += start_up(5 if quick else 20)
            figures += one_task(folder, 5 if quick else 9)
            figures += throughput(folder, [2_000, 5_000] if quick else [2_000, 20_000], 1 if quick else 3)
            figures += tool_turns(folder, 500 if quick else 2_000, 1 if quick else 3)
            figures += following(folder, 5_000 if quick else 20_000, 3 if quick else 5)
            figures += memory(folder, *((1_000, 10_000) if quick else (10_000, 100_000)))
            figures += reading(folder, 3 if quick else 5)
        finally:
            show(figures)
    failed = [figure.what for figure in figures if not figure.is_met(2.0 if given.budget else 1.0)]
    if given.budget:
        print(
            f"budget: {len(failed)} of {len(figures)} figures are worse than twice their bound", *failed, sep="\n    "
        )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
