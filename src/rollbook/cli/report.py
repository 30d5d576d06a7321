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
    for group in by_run(_only_runs(runs)):
        read = Reading(group)
        made.append(report_of(read, ks, least))
        _keep(read, made[-1])
    show_reports(made, json, markdown)
    for report in made:
        if report.scored < report.requested:
            raise shortfall(report)


def _only_runs(paths: list[Path]) -> list[Path]:
    """`runs/*` matches what lies beside the runs as well: that is left out by name. What is not there is a mistake."""
    stray = [path for path in paths if path.exists() and not (path / "run.json").exists()]
    if len(stray) == len(paths):
        return paths
    for path in stray:
        print(f"{path} is {_what(path)} and not a run: left out", file=sys.stderr)
    return [path for path in paths if path not in stray]


def _what(path: Path) -> str:
    if path.is_file():
        return "a file"
    return "a folder of runs" if any(path.glob("*/run.json")) else "a folder"


def _keep(read: Reading, report: Report) -> None:
    from rollbook.collect.report import keep
    from rollbook.view.page import write_page

    try:
        written = keep(report), write_page(read, report)
    except OSError as error:  # a copy that one may only read has numbers too
        print(f"the numbers and the page were not written to {report.path}: {error.strerror}", file=sys.stderr)
        return
    if report.merged:
        print(f"numbers of several directories together: {written[0]} and {written[1]}", file=sys.stderr)
