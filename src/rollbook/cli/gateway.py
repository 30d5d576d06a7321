"""`rollbook gateway`: a model for any agent, recorded turn by turn."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.serve import Host, Port, note, sampling
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Sampling, Settings

KEY = "ROLLBOOK_GATEWAY_KEY"

Upstream = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="URL",
        help="Who answers: an OpenAI-compatible endpoint; repeated: replicas. [default: the embedded model]",
    ),
]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="DIR", help="Write the record of each ended rollout there.")
]
Rollouts = Annotated[int, typer.Option("--rollouts", metavar="N", min=1, help="Rollouts open at once; more: HTTP 429.")]


def limits(
    timeout: o.Timeout = o.LIMITS.rollout_s,
    max_turns: o.MaxTurns = o.LIMITS.max_turns,
    max_tokens_total: o.MaxTokensTotal = None,
) -> Limits:
    """The limits of every rollout."""
    o.finite(timeout=timeout)
    return Limits(rollout_s=timeout, max_turns=max_turns, max_tokens_total=max_tokens_total)


@gathered("limited", limits)
@gathered("sampled", sampling)
def command(
    upstream: Upstream = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    model_name: o.ModelName = "",
    api_key_env: o.ApiKeyEnv = None,
    out: Out = None,
    seed: o.Seed = 0,
    *,
    sampled: Sampling,
    limited: Limits,
    call_timeout: o.CallTimeout = None,
    outage: o.Outage = None,
    rollouts: Rollouts = 4096,
) -> None:
    from rollbook.collect.loop import on_fast_loop
    from rollbook.wire.gateway.serve import Serving, serve_gateway
    from rollbook.wire.gateway.standalone import Terms

    o.finite(call_timeout=call_timeout, outage=outage)
    given: dict[str, JSON] = {"api_key_env": api_key_env, "call_s": call_timeout, "outage_s": outage}
    asked = Serving(
        upstream=upstream or [],
        model_name=model_name,
        host=host,
        port=port,
        out=None if out is None else str(out),
        settings=Settings(**{name: value for name, value in given.items() if value is not None}),
        terms=Terms(sampled, limited, seed, rollouts=rollouts),
    )
    key = os.environ.get(KEY) or secrets.token_urlsafe(24)
    on_fast_loop(lambda: serve_gateway(asked, key, lambda url: _ready(url, key), note))


def _ready(url: str, key: str) -> None:
    print(url, flush=True)
    if not os.environ.get(KEY):
        print(f"the key that opens and reads rollouts, good for this start ({KEY} sets one): {key}", file=sys.stderr)
