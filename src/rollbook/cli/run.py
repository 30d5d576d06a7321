"""`rollbook run`: plan, work, report."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.request import request_of
from rollbook.cli.showing import watched
from rollbook.collect.request import Request


@gathered("request", request_of)
def command(request: Request, json: o.Json = False) -> None:
    from rollbook.collect.run import run_request

    watched(request.out, lambda display: run_request(request, display), json)
