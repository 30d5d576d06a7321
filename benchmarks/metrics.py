"""What the numbers cost: report and profile of a big book beside one DuckDB scan of the same lines, as one table.

python benchmarks/metrics.py            1,000,000 scored rollouts (62,500 tasks x 16): about three minutes on two cores
python benchmarks/metrics.py --quick    a tenth of that
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bigbook import big_book
from engine import ROLLBOOK, Figure, show

from processes import Usage, measure

SCAN = """
import sys, duckdb
duckdb.sql("set threads=2")
columns = "{task: 'VARCHAR', reward: 'DOUBLE'}"
lines = f"read_json('{sys.argv[1]}/journals/*.jsonl', format='newline_delimited', columns={columns})"
found = duckdb.sql(f"select task, count(*), avg(reward), stddev_samp(reward) from {lines} group by task").fetchall()
print(len(found))
"""
COMMANDS = (("report",), ("profile", "-o", "profile.jsonl"))
MOST_MB = 1536


def scan(run: Path) -> Usage:
    """One pass of DuckDB over the journals: count, mean and spread of the reward per task, and nothing more."""
    return measure([sys.executable, "-c", SCAN, str(run)])


def beside_a_scan(folder: Path, run: Path, count: int, rounds: int) -> Iterator[Figure]:
    """Our commands and the scan, taken in turns; whole processes from start to end."""
    scan(run)  # so that the lines are in the page cache for everyone
    for name, *options in COMMANDS:
        ratios, ours, theirs, peaks = [], [], [], []
        for _ in range(rounds):
            before = scan(run).wall_s
            usage = measure([*ROLLBOOK, name, str(run), *options], cwd=str(folder))
            theirs.append(statistics.mean([before, scan(run).wall_s]))
            ours.append(usage.wall_s)
            peaks.append(usage.peak_mb)
            ratios.append(usage.wall_s / theirs[-1])
        detail = f"{statistics.median(ours):.2f} s, the scan {statistics.median(theirs):.2f} s"
        yield Figure(
            f"{name} of {count} rollouts, beside a DuckDB scan", statistics.median(ratios), "x", 3.0, detail=detail
        )
        yield Figure(f"{name} of {count} rollouts, memory of the whole tree", max(peaks), "MB", MOST_MB)


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
