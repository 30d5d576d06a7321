"""`rollbook submit`: plan here, work there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.orders import Orders, order_of, orders_of
from rollbook.cli.request import request_of
from rollbook.cli.tables import show_json
from rollbook.collect.request import Request
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.clusters.order import Order
    from rollbook.clusters.submit import Submission

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the scripts; write and submit nothing.")]


@gathered("orders", orders_of)
@gathered("request", request_of)
def command(
    request: Request, orders: Orders, typed: typer.Context, dry_run: DryRun = False, json: o.Json = False
) -> None:
    from rollbook.clusters.submit import submit

    if orders.on == "local":
        raise UsageError("--on local: there is nobody to submit to; rollbook run --workers N works on this machine")
    request, order = order_of(orders, request, typed)
    if dry_run:
        show_scripts(request, order, orders.pack)
        return
    show_submission(submit(request, order, orders.pack, say), json)


def say(line: str) -> None:
    """What is to be known besides."""
    print(line, file=sys.stderr)


def show_scripts(request: Request, order: Order, pack: Path | None) -> None:
    """The scripts as they would be handed in."""
    from rollbook.clusters.submit import rehearsed

    run = Path(os.path.abspath(request.out))
    for name, text in rehearsed(request, order, run, pack).items():
        print(f"# ---- {run}/jobs/0001/{name}", text, sep="\n")
    say("nothing was written or submitted")


def show_submission(submission: Submission, as_json: bool) -> None:
    """The ids, and what to do next."""
    if as_json:
        show_json(submission)
        return
    print(submission.path)
    for job in submission.jobs:
        print(f"{job.kind} {job.job}" + (f" (array of {job.count})" if job.kind != "report" else ""))
    if submission.jobs:
        say(f"next: rollbook status {quote(str(submission.path))}")
