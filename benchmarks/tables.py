"""What tables of a run cost: the flat columns of all rollouts as a Polars data frame, in the process that asks.

The first call reads the journals, relative to `polars.read_ndjson` on the same files. The second comes from RUN/index,
relative to Polars reading the same columns from Parquet. The start of the processes and their imports are not counted.
The book is made by bigbook.py without asking a model: four workers' journals of about 1,100 bytes a line, every chunk
sealed. Each is measured in a process of its own, theirs and ours in turns; the ratio is that of the neighbours. Memory
is the most that our process and a process that it starts to read journals have had, together.

.venv/bin/python benchmarks/tables.py            1,000,000 scored rollouts (62,500 tasks x 16): five minutes
.venv/bin/python benchmarks/tables.py --quick    a tenth of that
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bigbook import big_book

from engine import Figure, show

TIMED = """
import resource, sys, time
import polars, pyarrow, rollbook
rollbook.load
run, parquet = sys.argv[1:]
start = time.perf_counter()
{work}
peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(time.perf_counter() - start, peak / 1024)
"""
OURS = "frame = rollbook.load(run).to_polars(); assert len(frame)"
NDJSON = (
    "from pathlib import Path; "
    "frame = polars.concat([polars.read_ndjson(path) for path in sorted(Path(run, 'journals').glob('*.jsonl'))])"
)
PARQUET = "frame = polars.read_parquet(parquet); assert len(frame)"
WRITE = "rollbook.load(run).to_polars().write_parquet(parquet)"
MOST_MB = 1536


def measure(work: str, run: Path, parquet: Path) -> tuple[float, float]:
    """Seconds of the work, and the most memory of its process in MB."""
    command = [sys.executable, "-c", TIMED.format(work=work), str(run), str(parquet)]
    seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(peak)


def compare(run: Path, parquet: Path, rounds: int) -> list[Figure]:
    """Our calls and those of Polars, taken in turns."""
    measure(WRITE, run, parquet)
    first, again, lines, columns, peaks = [], [], [], [], []
    for _ in range(rounds):
        shutil.rmtree(run / "index", ignore_errors=True)
        for times, work in ((lines, NDJSON), (first, OURS), (columns, PARQUET), (again, OURS)):
            seconds, peak = measure(work, run, parquet)
            times.append(seconds)
            if work is OURS:
                peaks.append(peak)
    return [
        _ratio("all rollouts as a data frame the first time, relative to polars.read_ndjson", first, lines, 1.5),
        _ratio("all rollouts as a data frame again, relative to polars.read_parquet", again, columns, 3.0),
        Figure("memory of the process", max(peaks), "MB", MOST_MB),
    ]


def _ratio(what: str, ours: list[float], theirs: list[float], bound: float) -> Figure:
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    times = f"{statistics.median(ours):.2f} s, Polars {statistics.median(theirs):.2f} s"
    detail = f"{times}; from {ratios[0]:.2f} to {ratios[-1]:.2f} x"
    return Figure(what, statistics.median(ratios), "x", bound, detail=detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--book", type=Path, help="a book made before; else one is made and deleted")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name:
        run = given.book or big_book(Path(name) / "big", 6_250 if given.quick else 62_500, 16).path
        figures = compare(run.absolute(), Path(name) / "rollouts.parquet", 1 if given.quick else 3)
    show(figures)
    return int(any("MISSED" in figure.verdict for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
