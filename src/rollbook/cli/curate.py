"""`rollbook curate`: the tasks worth asking next, chosen by what they came to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from rollbook.cli import measuring as m
from rollbook.cli.tables import Cell, show_table
from rollbook.errors import UsageError

Source = Annotated[
    Path,
    typer.Argument(
        metavar="PROFILE_OR_RUN", help="A profile (.jsonl, .csv, .parquet), or a run directory.", show_default=False
    ),
]
Keep = Annotated[
    str | None, typer.Option("--keep", metavar="EXPR", help='Which tasks, as in "0 < mean < 1 and n >= 8".')
]
Sort = Annotated[str | None, typer.Option("--sort", metavar="EXPR", help="In which order; unknown values last.")]
Desc = Annotated[bool, typer.Option("--desc", help="Largest first.")]
Bucket = Annotated[
    str | None, typer.Option("--bucket", metavar="EXPR:EDGE,...", help="Divide, as in mean:0,0.25,0.5,0.75,1.")
]
PerBucket = Annotated[int | None, typer.Option("--per-bucket", metavar="N", min=0, help="Draw so many from each.")]
Limit = Annotated[int | None, typer.Option("-n", "--limit", metavar="N", min=0, help="Only the first so many.")]
NONE_LEFT = 3
Out = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="A .jsonl file, fit for --data.")]


def command(
    source: Source,
    out: Out,
    keep: Keep = None,
    sort: Sort = None,
    desc: Desc = False,
    bucket: Bucket = None,
    per_bucket: PerBucket = None,
    limit: Limit = None,
    seed: m.Seed = 0,
    k: m.Ks = None,
    threshold: m.Threshold = 1.0,
    prefix: m.Prefix = "",
) -> None:
    from rollbook.collect.tablefile import write_whole_lines
    from rollbook.stats.curate import Buckets, Wish, curate
    from rollbook.stats.expression import Expression

    if out.suffix != ".jsonl":
        raise UsageError(f"-o {out}: the ending must be .jsonl, which --data reads")
    if out.exists() and out.samefile(source):
        raise UsageError(f"-o {out}: that is what is read; choose another file")
    wish = Wish(
        keep=None if keep is None else Expression(keep),
        sort=None if sort is None else Expression(sort),
        descending=desc,
        buckets=None if bucket is None else Buckets.parse(bucket),
        per_bucket=per_bucket,
        limit=limit,
        seed=seed,
    )
    choice = curate(_lines(source, m.ks_of(k), m.threshold_of(threshold), prefix), wish)
    if choice.lines:
        write_whole_lines(out, iter(choice.lines))
    if choice.buckets:
        rows: list[list[Cell]] = [[label, held, taken] for label, (held, taken) in choice.buckets.items()]
        show_table([f"{bucket}".rpartition(":")[0], "tasks", "taken"], rows)
    outside = f", {choice.outside} outside every bucket" if choice.outside else ""
    counts = f"{len(choice.lines)} of {choice.rows} tasks ({choice.kept} kept{outside})"
    if not choice.lines:  # a file without rows would be no --data
        print(f"rollbook: {counts}: nothing to write, {out} was left as it was", file=sys.stderr)
        raise typer.Exit(NONE_LEFT)
    print(f"{out}: {counts}")


def _lines(source: Path, ks: list[int] | None, threshold: float, prefix: str) -> Iterator[bytes]:
    """The rows of a profile, or of a run's profile made now."""
    if source.is_dir():
        from rollbook.collect.profiling import profile_lines

        return profile_lines(source, ks, threshold, prefix)
    from rollbook.collect.tablefile import read_table
    from rollbook.core.json import encode

    return map(encode, read_table(source))
