"""`rollbook report`: the numbers of runs, from their files; a run that is not all scored exits like the run itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.cli import measuring as m
from rollbook.cli import options as o

if TYPE_CHECKING:
    from rollbook.collect.report import Reading, Report


def command(
    runs: m.Runs, k: m.Ks = None, threshold: m.Threshold = 1.0, markdown: m.Markdown = False, json: o.Json = False
) -> None:
    from rollbook.cli.reports import show_reports
    from rollbook.collect.report import Reading, report_of
    from rollbook.collect.shards import by_run
    from rollbook.collect.shortfall import shortfall

    ks, least = m.ks_of(k), m.threshold_of(threshold)
    made = []
    for group in by_run(_without_files(runs)):
        read = Reading(group)
        made.append(report_of(read, ks, least))
        _keep(read, made[-1])
    show_reports(made, json, markdown)
    for report in made:
        if report.scored < report.requested:
            raise shortfall(report)


def _without_files(runs: list[Path]) -> list[Path]:
    """`runs/*` matches what lies beside the runs as well; a directory that is no run is refused."""
    stray = [path for path in runs if path.is_file()]
    if len(stray) == len(runs):
        return runs
    for path in stray:
        print(f"{path} is a file and not a run: left out", file=sys.stderr)
    return [path for path in runs if path not in stray]


def _keep(read: Reading, report: Report) -> None:
    from rollbook.collect.report import keep
    from rollbook.view.page import write_page

    try:
        keep(report)
        write_page(read, report)
    except OSError as error:  # a copy that one may only read has numbers too
        print(f"metrics.json and report.html were not written: {error.strerror}", file=sys.stderr)
