"""`rollbook plan`: the run directory, and no model asked."""

from __future__ import annotations

import sys

from rollbook.cli.gathered import gathered
from rollbook.cli.request import request_of
from rollbook.collect.request import Request


@gathered("request", request_of)
def command(request: Request) -> None:
    from rollbook.collect.run import plan_request

    run = plan_request(request, lambda line: print(line, file=sys.stderr))
    print(run)
    print(f"next: rollbook work {run}", file=sys.stderr)
