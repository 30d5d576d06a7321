"""What the numbers cost: report and profile of a big run relative to one scan of the same lines by DuckDB and Polars.

Both are taken from the journals, as the first time, and again from what that first time has kept in RUN/index. The
bound is "at most 3 times the time DuckDB or Polars takes": the first time it is held against Polars, the slower of the
two at this, and the ratio to DuckDB is next to it, unbounded. The second time is held against DuckDB.

.venv/bin/python benchmarks/metrics.py            1,000,000 scored rollouts (62,500 tasks x 16): three minutes
.venv/bin/python benchmarks/metrics.py --quick    a tenth of that
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bigbook import big_book

from engine import ROLLBOOK, Figure, show
from processes import measure

DUCKDB = """
import sys, duckdb
duckdb.sql("set threads=2")
columns = "{task: 'VARCHAR', reward: 'DOUBLE'}"
lines = f"read_json('{sys.argv[1]}/journals/*.jsonl', format='newline_delimited', columns={columns})"
found = duckdb.sql(f"select task, count(*), avg(reward), stddev_samp(reward) from {lines} group by task").fetchall()
print(len(found))
"""
POLARS = """
import sys, polars as pl
lines = pl.scan_ndjson(f"{sys.argv[1]}/journals/*.jsonl", schema={"task": pl.String, "reward": pl.Float64})
reward = pl.col("reward")
print(len(lines.group_by("task").agg(pl.len(), reward.mean().alias("mean"), reward.std().alias("std")).collect()))
"""
COMMANDS = (("report",), ("profile", "-o", "profile.jsonl"))
MOST_MB = 1536
BOUND = 3.0


def scan(engine: str, run: Path) -> float:
    """Seconds of one pass over the journals: count, mean and spread of the reward per task, and nothing more."""
    return measure([sys.executable, "-c", engine, str(run)]).wall_s


def beside_a_scan(folder: Path, run: Path, count: int, rounds: int) -> Iterator[Figure]:
    """Our commands and the scans, taken in turns; whole processes from start to end."""
    scan(DUCKDB, run)  # so that the lines are in the page cache for everyone
    for name, *options in COMMANDS:
        first, again, duckdb, polars, peaks = [], [], [], [], []
        for _ in range(rounds):
            duckdb.append(scan(DUCKDB, run))
            polars.append(scan(POLARS, run))
            shutil.rmtree(run / "index", ignore_errors=True)
            for times in (first, again):
                usage = measure([*ROLLBOOK, name, str(run), *options], cwd=str(folder))
                times.append(usage.wall_s)
                peaks.append(usage.peak_mb)
        what = f"{name} of {count} rollouts"
        yield _ratio(f"{what} the first time, relative to a Polars scan (the bound is held here)", first, polars, BOUND)
        yield _ratio(f"{what} the first time, relative to a DuckDB scan (for comparison, no bound)", first, duckdb)
        yield _ratio(f"{what} the second time, relative to a DuckDB scan", again, duckdb, BOUND)
        yield Figure(f"{what}, memory of the whole tree", max(peaks), "MB", MOST_MB)


def _ratio(what: str, ours: list[float], theirs: list[float], bound: float | None = None) -> Figure:
    """How many times as long as the scan of the same turn."""
    detail = f"{statistics.median(ours):.2f} s, the scan {statistics.median(theirs):.2f} s"
    ratio = statistics.median(mine / scanned for mine, scanned in zip(ours, theirs, strict=True))
    return Figure(what, ratio, "x", bound, detail=detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--book", type=Path, help="a book made before; else one is made and thrown away")
    given = parser.parse_args()
    tasks, samples = (6_250 if given.quick else 62_500), 16
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name:
        folder = Path(name)
        run = given.book or big_book(folder / "big", tasks, samples).path
        figures = list(beside_a_scan(folder, run.absolute(), tasks * samples, 1 if given.quick else 5))
    show(figures)
    return int(any("MISSED" in figure.verdict for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
