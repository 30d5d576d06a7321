"""`rollbook submit`: plan here, work there."""

from __future__ import annotations

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
    from rollbook.clusters.jobs import Job
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
    if order.ray:
        submit_to_ray(request, order, orders.pack, dry_run, json)
        return
    if dry_run:
        show_scripts(request, order, orders.pack, json)
        return
    show_submission(submit(request, order, orders.pack, say), json)


def submit_to_ray(request: Request, order: Order, pack: Path | None, dry_run: bool, json: bool) -> None:
    """Leave a run to a foreman on a Ray cluster."""
    from rollbook.clusters.ray.crews import submit_there

    if dry_run:
        raise UsageError("--dry-run: shows the scripts for Slurm; Ray is given none")
    show_submission(submit_there(request, order, pack, say), json)


def say(line: str) -> None:
    """What is to be known besides."""
    print(line, file=sys.stderr)


def show_scripts(request: Request, order: Order, pack: Path | None, as_json: bool) -> None:
    """The scripts as they would be handed in, by their paths."""
    from rollbook.clusters.submit import place_of, rehearsed

    run = place_of(request, order)
    scripts = {f"{run}/jobs/0001/{name}": text for name, text in rehearsed(request, order, run, pack).items()}
    if as_json:
        show_json({"scripts": scripts})
    else:
        print("\n".join(f"# ---- {path}\n{text}" for path, text in scripts.items()))
    say("nothing was written or submitted")


def show_submission(submission: Submission, as_json: bool) -> None:
    """The ids, and what to do next."""
    if as_json:
        show_json(submission)
        return
    print(submission.path)
    for job in submission.jobs:
        print(f"{job.kind} {job.job}{size_of(job)}")
    if submission.jobs:
        say(f"next: rollbook status {quote(str(submission.path))}")


def size_of(job: Job) -> str:
    """How many there are of a job, in words."""
    if job.kind == "report":
        return ""
    return f" (workers: {job.count})" if job.kind == "crew" else f" (array of {job.count})"
