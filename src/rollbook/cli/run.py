"""`rollbook run`: plan, work, report; the work here, or on a cluster that is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.orders import Orders, order_of, orders_of, refuse_local
from rollbook.cli.request import request_of
from rollbook.cli.showing import watched
from rollbook.collect.progress import Display
from rollbook.collect.request import Request
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.collect.run import Result

Wait = Annotated[bool, typer.Option("--wait", help="With --on slurm: wait for the jobs, and end as they do.")]


@gathered("orders", orders_of)
@gathered("request", request_of)
def command(request: Request, orders: Orders, typed: typer.Context, wait: Wait = False, json: o.Json = False) -> None:
    from rollbook.collect.run import run_request

    if orders.on == "slurm":
        if not wait:
            raise UsageError("run --on slurm: add --wait to wait for the jobs, or submit them with rollbook submit")
        watched(request.out, lambda display: submitted(request, orders, typed, display), json)
        return
    if wait:
        raise UsageError("--wait: goes with --on slurm; all other work is waited for anyway")
    if orders.on == "ray":
        watched(request.out, lambda display: run_on_ray(request, orders, typed, display), json)
        return
    refuse_local(orders)
    watched(request.out, lambda display: run_request(request, display), json)


def run_on_ray(request: Request, orders: Orders, typed: typer.Context, display: Display) -> Result:
    """Run with workers that are actors."""
    from rollbook.clusters.ray.crews import run_there

    asked, order = order_of(orders, request, typed)
    return run_there(asked, order, orders.pack, display)


def submitted(request: Request, orders: Orders, typed: typer.Context, display: Display) -> Result:
    """Submit, wait, and say what came of it."""
    from rollbook.clusters.submit import submit
    from rollbook.clusters.waiting import wait

    asked, order = order_of(orders, request, typed)
    sent = submit(asked, order, orders.pack, display.note)
    ids = ", ".join(f"{job.kind} {job.job}" for job in sent.jobs)
    display.note(f"{ids}; they go on without this terminal: rollbook status {sent.path}")
    return wait(sent.path, display)
