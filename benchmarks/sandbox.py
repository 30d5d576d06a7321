"""What the sandbox costs, relative to what does the same with fewer walls or none, in the same minute, as one table.

.venv/bin/python benchmarks/sandbox.py                   the figures of the issue: some minutes on two cores
.venv/bin/python benchmarks/sandbox.py --quick           the same with fewer runs
.venv/bin/python benchmarks/sandbox.py --soak 10000      so many runs, all attacks mixed, by eights: nothing may be left
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cpu import Clock, whole_tree
from forkserver import ForkServer

from engine import Figure, show
from rollbook.sandbox import Grader, Limits, Sandbox
from rollbook.sandbox.backends.bubblewrap import find_loaders
from rollbook.sandbox.isolation import base_python, make_configuration

CODE = "print(1 + 1)"
LIMITS = Limits(seconds=5.0, memory_mb=256)
HUMAN_EVAL = "humaneval.jsonl.gz"
THIRD = 3.0
"""A runner that does all tests of a sample in its own process takes about this part of a fork for each."""
INPUTS = [(f"{number} {number + 1}\n", str(2 * number + 1)) for number in range(10)]
ADDS = "a, b = map(int, input().split())\nprint(a + b)\n"


def cpu_ms(clock: Clock, act: Callable[[], object], times: int) -> float:
    """What one costs, of many, with all that it starts."""
    before = clock()
    for _ in range(times):
        act()
    return 1000 * (clock() - before) / times


def plain_python(python: str) -> None:
    """A fresh interpreter with nothing around it."""
    done = subprocess.run([python, "-I", "-S", "-c", CODE], capture_output=True, env={}, timeout=60, check=True)
    assert done.stdout == b"2\n"


def bubblewrap(python: str) -> Callable[[], None]:
    """A fresh interpreter in bubblewrap, which sees as little as ours."""
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    for place in [*make_configuration([])["places"], *find_loaders(), python]:
        words += ["--symlink", os.readlink(place), place] if os.path.islink(place) else ["--ro-bind", place, place]
    words += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/box", "--chdir", "/box", "--", python, "-I", "-S", "-c"]

    def run() -> None:
        done = subprocess.run([*words, CODE], capture_output=True, env={}, timeout=60, check=True)
        assert done.stdout == b"2\n"

    return run


def fresh(box: Sandbox, code: str = CODE) -> None:
    """A run of ours."""
    result = box.run_sync(code)
    assert (result.status, result.stdout) == ("ok", "2\n"), result


def fresh_runs(clock: Clock, whole: bool, rounds: int, times: int) -> Iterator[Figure]:
    """CPU of a fresh run relative to others', taken in turns; and how even its time is."""
    python, taken = base_python(), {}
    with Sandbox(LIMITS, size=1) as box:
        server = ForkServer(python)
        acts: dict[str, Callable[[], object]] = {
            "ours": lambda: fresh(box),
            "a plain fork server": lambda: server.run(CODE),
            "python -I -S -c": lambda: plain_python(python),
        }
        if not shutil.which("bwrap"):
            skip("bubblewrap", "there is no bwrap on PATH")
        elif not whole:
            skip("bubblewrap", "it does not wait for its children, and no control group may be made to count them")
        else:
            acts["bubblewrap"] = bubblewrap(python)
        for act in acts.values():
            act()
        taken = {name: [] for name in acts}
        for _ in range(rounds):
            for name, act in acts.items():
                taken[name].append(cpu_ms(clock, act, times))
        server.close()
        ours = statistics.median(taken["ours"])
        for name, most in (("a plain fork server", 1.5), ("python -I -S -c", 0.6), ("bubblewrap", 0.5)):
            if name in taken:
                ratio = statistics.median(a / b for a, b in zip(taken["ours"], taken[name], strict=True))
                detail = f"{ours:.2f} ms, {statistics.median(taken[name]):.2f} ms"
                yield Figure(f"CPU of a fresh run, relative to {name}", ratio, "x", most, detail=detail)
        yield evenness(box, rounds * times)


def evenness(box: Sandbox, times: int) -> Figure:
    """How much longer a slow run takes than a usual one."""
    walls = sorted(_wall_s(lambda: fresh(box)) for _ in range(max(200, times)))
    p50, p99 = walls[len(walls) // 2], walls[len(walls) * 99 // 100]
    detail = f"p50 {1000 * p50:.2f} ms, p99 {1000 * p99:.2f} ms"
    return Figure("a fresh run, p99 relative to p50", p99 / p50, "x", 5.0, detail=detail)


def _wall_s(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def packages(clock: Clock, rounds: int, times: int) -> Iterator[Figure]:
    """What importing numpy costs where it is loaded already."""
    with Sandbox(LIMITS, size=1, packages=["numpy"]) as box:
        differences, plain = [], []
        for _ in range(rounds):
            plain.append(cpu_ms(clock, lambda: fresh(box), times))
            differences.append(cpu_ms(clock, lambda: fresh(box, f"import numpy\n{CODE}"), times) - plain[-1])
    detail = f"{statistics.median(plain):.2f} ms without"
    yield Figure("numpy preloaded: CPU of importing it", statistics.median(differences), "ms", 2.0, detail=detail)


def sessions(times: int) -> Iterator[Figure]:
    """A turn relative to a fresh run."""
    with Sandbox(LIMITS, size=1) as box, box.session() as session:
        turns = statistics.median(_wall_s(lambda: session.run_sync("1 + 1")) for _ in range(times))
        runs = statistics.median(_wall_s(lambda: fresh(box)) for _ in range(times))
    detail = f"p50 {1000 * turns:.2f} ms, {1000 * runs:.2f} ms"
    yield Figure("a session's turn, relative to a fresh run", turns / runs, "x", 0.1, detail=detail)


def human_eval(data: Path, rounds: int) -> Iterator[Figure]:
    """Every solution verified by the split grader, relative to a process for each whose exit code is believed."""
    with gzip.open(data) as lines:
        tasks = [json.loads(line) for line in lines]
    python, ratios, rates, workers = base_python(), [], [], os.cpu_count() or 1
    with Sandbox(LIMITS, size=workers) as box, ThreadPoolExecutor(2 * workers) as pool:
        grader = Grader(box)
        for _ in range(rounds):
            split = _wall_s(lambda: check_all(pool.map(lambda task: graded(grader, task), tasks)))
            with ThreadPoolExecutor(workers) as few:
                plain = _wall_s(lambda: check_all(few.map(lambda task: exited(python, task), tasks)))
            ratios.append(split / plain)
            rates.append((len(tasks) / split, len(tasks) / plain))
    detail = f"{statistics.median(r[0] for r in rates):.0f}/s, {statistics.median(r[1] for r in rates):.0f}/s"
    what = f"{len(tasks)} HumanEval solutions graded, relative to python -I -S and its exit code"
    yield Figure(what, statistics.median(ratios), "x", 1.0, detail=detail)


def graded(grader: Grader, task: dict[str, str]) -> bool:
    """The split grader's verdict."""
    code = task["prompt"] + task["canonical_solution"]
    helpers = task["prompt"]  # some tests call what the prompt defines relative to the function
    return grader.function_sync(code, task["test"], task["entry_point"], check="check", setup=helpers).passed


def exited(python: str, task: dict[str, str]) -> bool:
    """The verdict of an exit code."""
    code = f"{task['prompt']}{task['canonical_solution']}\n{task['test']}\ncheck({task['entry_point']})\n"
    return subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, env={}, timeout=60).returncode == 0


def check_all(passed: Iterator[bool]) -> None:
    """Known right answers."""
    assert all(list(passed)), "a known right answer did not pass"


def inputs(clock: Clock, rounds: int, times: int) -> Iterator[Figure]:
    """Ten inputs to one program, relative to a third of a plain fork for each."""
    ratios, ours, forks = [], [], []
    with Sandbox(LIMITS, size=1) as box:
        grader, server = Grader(box), ForkServer(base_python())
        for _ in range(rounds):
            ours.append(cpu_ms(clock, lambda: ten(grader), times))
            forks.append(cpu_ms(clock, lambda: server.run(CODE), times))
            ratios.append(ours[-1] / (len(INPUTS) * forks[-1] / THIRD))
        server.close()
        wall = statistics.median(_wall_s(lambda: ten(grader)) for _ in range(times))
    median = statistics.median
    detail = f"{median(ours):.2f} ms a sample (p50 {1000 * wall:.2f} ms), a fork {median(forks):.2f} ms"
    what = "CPU of ten inputs a sample, relative to a third of a fork each"
    yield Figure(what, statistics.median(ratios), "x", 1.0, detail=detail)


def ten(grader: Grader) -> None:
    """A right program."""
    assert grader.inputs_sync(ADDS, INPUTS).passed


def find_data(given: Path | None) -> Path | None:
    """Where the problems of HumanEval lie."""
    import rollbook

    shipped = Path(rollbook.__file__).parent / "environments" / "builtin" / "data" / HUMAN_EVAL
    return next((path for path in (given, shipped) if path and path.exists()), None)


def skip(what: str, why: str) -> None:
    """Say loudly what is not measured."""
    print(f"SKIPPED: {what}: {why}", file=sys.stderr)


def measured(quick: bool, data: Path | None) -> Iterator[Figure]:
    """All figures."""
    rounds, times = (3, 50) if quick else (7, 150)
    with whole_tree() as (clock, whole):
        yield from fresh_runs(clock, whole, rounds, times)
        yield from packages(clock, rounds, times)
        yield from inputs(clock, rounds, times // 3)
    yield from sessions(2 * times)
    found = find_data(data)
    if found:
        yield from human_eval(found, 1 if quick else 3)
    else:
        skip("HumanEval", f"{HUMAN_EVAL} is not in the package; name it with --data")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--data", type=Path, help=f"{HUMAN_EVAL}, where the package does not have it")
    parser.add_argument("--soak", type=int, metavar="RUNS", help="run attacks and see that nothing is left")
    options = parser.parse_args()
    figures: list[Figure] = []
    try:
        if options.soak:
            from soak import soak

            figures += soak(options.soak)
        else:
            figures += measured(options.quick, options.data)
    finally:
        show(figures)
    return int(any("MISSED" in figure.verdict for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
