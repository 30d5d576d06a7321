"""`rollbook logs`: what workers said, wherever they ran."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.tables import show_table
from rollbook.errors import UsageError

WorkerNumber = Annotated[
    int | None, typer.Option("--worker", metavar="N", min=0, help="The whole log of this worker.", show_default=False)
]


def command(run: o.Run, worker: WorkerNumber = None) -> None:
    from rollbook.book.book import Book
    from rollbook.clusters.logs import logs_of

    found = logs_of(Book(run).path, worker)
    if not found:
        raise UsageError(f"{run}: no worker has written a log; the work of `rollbook run` alone is shown as it goes")
    if worker is None:
        show_table(["log", "file", "last line"], [[log.who, str(log.path), log.last_line] for log in found])
        return
    for log in found:
        print(f"# {log.path}", file=sys.stderr)
        with open(log.path, encoding="utf-8", errors="replace") as file:
            shutil.copyfileobj(file, sys.stdout)
