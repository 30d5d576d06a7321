"""`rollbook doctor`: what this machine can do, or an endpoint, each thing with the reason for a no."""

from __future__ import annotations

from typing import Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.tables import show_json, show_table

Endpoint = Annotated[
    str | None, typer.Option("-m", "--model", metavar="URL", help="Look at this endpoint instead of the machine.")
]


def command(
    model: Endpoint = None, model_name: o.ModelName = "", api_key_env: o.ApiKeyEnv = None, json: o.Json = False
) -> None:
    from rollbook.cli.endpoint import endpoint_findings
    from rollbook.cli.machine import findings

    found = endpoint_findings(model, model_name, api_key_env or "OPENAI_API_KEY") if model else findings()
    if json:
        show_json(found)
        return
    rows = [[finding.what, "yes" if finding.works else "no", finding.detail] for finding in found]
    show_table(["", "works", "detail"], rows)
