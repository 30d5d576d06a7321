"""`rollbook export`: a run's rollouts in a form that others read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rollbook.cli import options as o

Format = Annotated[str, typer.Option("--format", metavar="jsonl|parquet|gym|sft", help="What the rows look like.")]
Keep = Annotated[
    str | None,
    typer.Option(
        "--keep",
        metavar="EXPR",
        help='Which rollouts, as in "reward >= 1 and turns < 9". [default: all that are scored; of sft "reward >= 1"]',
    ),
]
Out = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The file; must be new.", show_default=False)]


def command(run: o.Run, out: Out, format: Format = "jsonl", keep: Keep = None) -> None:
    from rollbook.collect.export import PASSING, export
    from rollbook.stats.expression import Expression

    kept = None if keep is None else Expression(keep)
    if format == "gym":
        from rollbook.wire.gym.driving.output import export_gym

        done = export_gym(run, out, kept)
    else:
        done = export(run, format, out, kept)
    reasons = ((done.unscored, "without a score"), (done.filtered, f"not kept by {keep or PASSING!r}"))
    left = ", ".join(f"{count} {why}" for count, why in reasons if count)
    print(f"{done.written} rollouts: {out}{f' (not exported: {left})' if left else ''}", file=sys.stderr)
