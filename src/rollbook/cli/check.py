"""`rollbook check`: is this environment sound? No model is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.tables import Cell, show_json, show_table
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Settings
from rollbook.errors import Unsound

if TYPE_CHECKING:
    from rollbook.collect.finding import Soundness

Tasks = Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, help="Look at the first so many tasks.")]


@gathered("given", o.judged)
def command(
    env: o.Target,
    limit: Tasks = 200,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    verify_timeout: o.VerifyTimeout = o.LIMITS.verify_s,
    judge_name: o.JudgeName = "",
    *,
    given: dict[str, JSON],
    json: o.Json = False,
) -> None:
    from rollbook.collect.check import examine
    from rollbook.collect.loop import on_fast_loop
    from rollbook.collect.member import found

    o.finite(verify_timeout=verify_timeout)
    loaded = found(env, data, prompt_template)
    limits, settings = Limits(verify_s=verify_timeout), Settings(**given)
    result = on_fast_loop(lambda: examine(loaded, limit, limits, settings, judge_name))
    show(result, json)
    if not result.sound:
        raise Unsound(f"{result.environment} is unsound: {'; '.join(finding.check for finding in result.faults)}")


def show(result: Soundness, as_json: bool) -> None:
    """Every finding, and below them whether all is well."""
    if as_json:
        show_json(result.json())
        return
    rows: list[list[Cell]] = [[f.check, f.verdict, f.tasks or None, f.found, f.example] for f in result.findings]
    show_table([f"{result.environment}, {result.tasks} tasks", "verdict", "tasks", "found", "example"], rows)
