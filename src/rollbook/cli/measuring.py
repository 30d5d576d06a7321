"""The options of the commands that compute numbers, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from rollbook.cli.options import finite
from rollbook.errors import UsageError

Runs: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run directories; those of the same run are read as one.",
        show_default=False,
    ),
]
Ks: TypeAlias = Annotated[
    str | None,
    typer.Option("-k", metavar="K,...", help="Which numbers @k. [default: powers of two up to the samples]"),
]
Threshold: TypeAlias = Annotated[
    float, typer.Option("--threshold", metavar="X", help="The reward from which a rollout passes.")
]
Markdown: TypeAlias = Annotated[bool, typer.Option("--markdown", help="Print a table to paste.")]
Prefix: TypeAlias = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Put before the names of the numbers.")
]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", metavar="N", help="Decides what is drawn.")]


def ks_of(text: str | None) -> list[int] | None:
    """The value of -k: whole numbers from 1, ascending and each once.

    >>> ks_of("8,1,2,2")
    [1, 2, 8]
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) <= 100_000 for word in words):
        raise UsageError(f"-k {text}: write whole numbers from 1, as in -k 1,2,4,8")
    return sorted({int(word) for word in words})


def threshold_of(value: float) -> float:
    """The value of --threshold: a finite number."""
    finite(threshold=value)
    return value
