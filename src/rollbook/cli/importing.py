"""`rollbook import`: a book of what NeMo Gym collected."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rollbook.cli import options as o

Collected = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="The rollouts that `gym eval run` wrote; inputs and failures are found beside them.",
        show_default=False,
    ),
]


def command(file: Collected, out: o.Out = None, json: o.Json = False) -> None:
    from rollbook.cli.reports import show_reports
    from rollbook.cli.request import new_folder
    from rollbook.collect.loop import on_fast_loop
    from rollbook.collect.shortfall import shortfall
    from rollbook.wire.gym.driving.imported import import_gym

    folder = out or str(new_folder(file.stem))
    made = on_fast_loop(lambda: import_gym(file, folder, lambda note: print(note, file=sys.stderr)))
    show_reports([made], json, False)
    if made.scored < made.requested:
        raise shortfall(made)
