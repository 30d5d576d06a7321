"""`rollbook reverify`: score stored rollouts again, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rollbook.cli import options as o
from rollbook.cli.display import display
from rollbook.cli.gathered import gathered
from rollbook.cli.numbers import show_numbers
from rollbook.cli.tables import Cell, show_json, show_table
from rollbook.core.json import JSON
from rollbook.core.manifest import Settings
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.collect.reverify import Only, Reverified

CHANGES_SHOWN = 10
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="[NAME=]ENVIRONMENT", help="Score with this one's verifier instead; repeat it."),
]
Which = Annotated[str, typer.Option("--only", metavar="failed|scored|all", help="Which rollouts to score again.")]
New = Annotated[str | None, typer.Option("-o", "--out", metavar="DIR", help="The new run. [default: RUN-reverified]")]


@gathered("given", o.judged)
def command(
    run: o.Run,
    env: Env = None,
    only: Which = "all",
    out: New = None,
    judge_name: o.JudgeName = "",
    *,
    given: dict[str, JSON],
    json: o.Json = False,
) -> None:
    from rollbook.collect.loop import on_fast_loop
    from rollbook.collect.reverify import reverify
    from rollbook.collect.shortfall import shortfall

    if only not in ("failed", "scored", "all"):
        raise UsageError(f"--only {only}: give failed, scored or all")
    folder = Path(out) if out else run.with_name(f"{run.name}-reverified")
    screen = display()
    try:
        settings = Settings(retry=[], **given)
        result = on_fast_loop(
            lambda: reverify(run, folder, env or [], cast("Only", only), screen, settings, judge_name)
        )
    finally:
        screen.stop()
    show(result, json)
    if result.report.scored < result.report.requested:
        raise shortfall(result.report)


def show(result: Reverified, as_json: bool) -> None:
    """The new numbers, then what changed."""
    if as_json:
        show_json(result.json())
        return
    show_numbers(result.report, False)
    since = " by this start, the others by an earlier one" if result.went_on else ""
    print(f"{result.verified} rollouts verified again{since}, {result.changed} rewards changed")
    if result.changes:
        rows: list[list[Cell]] = [[c.task, c.sample, c.before, c.after] for c in result.changes[:CHANGES_SHOWN]]
        show_table(["changed", "sample", "before", "after"], rows)
        if result.changed > CHANGES_SHOWN:
            print(f"all of them: {result.path}/changes.jsonl")
