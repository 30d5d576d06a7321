"""`rollbook doctor`: what this machine can do, each thing with the reason for a no."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.tables import show_json, show_table


def command(json: o.Json = False) -> None:
    from rollbook.cli.machine import findings

    found = findings()
    if json:
        show_json(found)
        return
    rows = [[finding.what, "yes" if finding.works else "no", finding.detail] for finding in found]
    show_table(["", "works", "detail"], rows)
