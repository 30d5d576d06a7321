"""`rollbook report`: the numbers of runs, from their files; a run that is not all scored exits like the run itself."""

from __future__ import annotations

import sys
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
    for group in by_run(runs):
        read = Reading(group)
        made.append(report_of(read, ks, least))
        _keep(read, made[-1])
    show_reports(made, json, markdown)
    for report in made:
        if report.scored < report.requested:
            raise shortfall(report)


def _keep(read: Reading, report: Report) -> None:
    from rollbook.collect.report import keep
    from rollbook.view.page import write_page

    try:
        keep(report)
        write_page(read, report)
    except OSError as error:  # a copy that one may only read has numbers too
        print(f"metrics.json and report.html were not written: {error.strerror}", file=sys.stderr)
