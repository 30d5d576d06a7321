"""`rollbook profile`: one row a task, as a file that can be asked again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rollbook.cli import measuring as m

Out = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="FILE", help="A .jsonl, .csv or .parquet file. [default: RUN/profile.jsonl]"),
]


def command(runs: m.Runs, out: Out = None, k: m.Ks = None, threshold: m.Threshold = 1.0, prefix: m.Prefix = "") -> None:
    from rollbook.collect.profiling import ProfileRows
    from rollbook.collect.report import Reading
    from rollbook.collect.tablefile import check_ending, write_table

    target = out or runs[0] / "profile.jsonl"
    check_ending(target)
    read = Reading(runs)
    rows = ProfileRows(read, m.ks_of(k), m.threshold_of(threshold), prefix)
    count = write_table(target, rows)
    if read.live:
        print("the run is going on: these are the numbers so far", file=sys.stderr)
    scored, requested = len(read.tally.columns), int(read.asked.sum())
    print(f"{target}: {count} tasks, {scored}/{requested} rollouts scored")
