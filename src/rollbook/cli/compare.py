"""`rollbook compare`: two runs of the same tasks, paired task by task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli import measuring as m
from rollbook.cli import options as o
from rollbook.cli.numbers import who
from rollbook.cli.tables import Cell, cell_text, harmless, show_json, show_table

if TYPE_CHECKING:
    from rollbook.collect.comparing import Compared, Run
    from rollbook.stats.compare import Difference

A = Annotated[Path, typer.Argument(metavar="A", help="A run directory.", show_default=False)]
B = Annotated[Path, typer.Argument(metavar="B", help="Another, of the same tasks.", show_default=False)]
Common = Annotated[bool, typer.Option("--common", help="Where the tasks differ, compare those that both have.")]
FLIPPED_SHOWN = 10
LEAST_SHOWN = 0.0001


def command(
    a: A,
    b: B,
    common: Common = False,
    k: m.Ks = None,
    threshold: m.Threshold = 1.0,
    seed: m.Seed = 0,
    json: o.Json = False,
) -> None:
    from rollbook.collect.comparing import compare_runs

    found = compare_runs(a, b, common=common, ks=m.ks_of(k), threshold=m.threshold_of(threshold), seed=seed)
    show_json(found.json()) if json else _show(found)


def _show(found: Compared) -> None:
    made = found.comparison
    print("\n".join(map(harmless, [_run("A", found.a), _run("B", found.b), *found.notes])))
    columns = ["A", "B", "B - A", "95%", "tasks"]
    show_table(["number", *columns], [_row(name, each) for name, each in made.metrics.items()])
    show_table(["a rollout", *columns], [_row(name, each) for name, each in made.costs.items()])
    print(f"better on {made.better} tasks, worse on {made.worse}, even on {made.tasks - made.better - made.worse}")
    how = f" ({made.permutations:,} drawn)" if made.permutations else ""
    print(f"permutation test p {_p(made.permutation_p)}{how}, sign test p {_p(made.sign_p)}")
    _flipped("solved only by B", made.gained)
    _flipped("solved only by A", made.lost)


def _run(side: str, run: Run) -> str:
    return f"{side}: {run.path}: {who(run.model, run.scripted)}: {run.scored}/{run.requested} scored"


def _row(name: str, each: Difference) -> list[Cell]:
    bounds = " to ".join(map(cell_text, each.interval)) if each.interval else "-"
    return [name, each.a, each.b, each.difference, bounds, each.tasks]


def _p(value: float | None) -> str:
    if value is None:
        return "= -"
    return f"= {value:.4f}" if value >= LEAST_SHOWN else f"< {LEAST_SHOWN}"


def _flipped(words: str, tasks: list[str]) -> None:
    more = f" and {len(tasks) - FLIPPED_SHOWN} more (all: --json)" if len(tasks) > FLIPPED_SHOWN else ""
    print(f"{words}: {len(tasks)}{': ' if tasks else ''}{', '.join(map(harmless, tasks[:FLIPPED_SHOWN]))}{more}")
