"""`rollbook serve`, `gym-config` and `gateway`: environments for NeMo Gym, and a recorded model for any agent.

`serve` serves an environment as a resources server or as an agent; `gym-config` writes the configuration, the rows and
the folder with which NeMo Gym uses it; `gateway` serves a model to any agent and records it turn by turn.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from rollbook.cli import options as o
from rollbook.cli.options import compose_options
from rollbook.core import JSON, Limits, RunOptions, Sampling, Settings, ToolFormat, list_parameters
from rollbook.errors import UsageError

Host = Annotated[str, typer.Option("--host", help="Beyond loopback only on purpose: there is no password.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Write the environment's tasks there, as rows of Gym.")
]
Role = Annotated[
    str, typer.Option("--as", metavar="ROLE", help="resources: tools and verifier; agent: whole rollouts.")
]
Reuse = Annotated[
    bool,
    typer.Option("--reuse", help="Use a server that is at the address already, if it serves the same."),
]
Head = Annotated[bool, typer.Option("--head", help="Also answer as the head server, which says where servers are.")]
EvalType = Annotated[str, typer.Option("--eval-type", metavar="NAME", help="Names the server; told to a harness.")]
HarnessArg = Annotated[
    list[str] | None,
    typer.Option("--harness-arg", metavar="KEY=VALUE", help="Told to harness:PACKAGE; may be repeated. No secrets."),
]
Sessions = Annotated[int, typer.Option("--sessions", metavar="N", min=1, help="States open at once; more wait.")]
Lease = Annotated[
    float, typer.Option("--lease", metavar="S", min=0.1, help="A state that nobody uses for so long is closed.")
]
AgentConcurrency = Annotated[
    int, typer.Option("-c", "--concurrency", metavar="N", min=1, help="Rollouts of an agent at once.")
]


@compose_options(key=o.API_KEY, sampling=o.make_struct(Sampling), limits=o.make_struct(Limits), judge=o.JUDGE_SETTINGS)
def serve_command(
    env: o.EnvironmentArg,
    host: Host = "127.0.0.1",
    port: o.Port = 0,
    data_dir: DataDir = None,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    role: Role = "resources",
    reuse: Reuse = False,
    head: Head = False,
    model: o.Model = None,
    model_name: o.ModelName = "",
    *,
    key: dict[str, JSON],
    concurrency: AgentConcurrency = 64,
    tool_format: o.ToolFormatName = "auto",
    seed: o.Seed = 0,
    sampling: Sampling,
    limits: Limits,
    judge_name: o.JudgeName = "",
    judge: dict[str, JSON],
    sessions: Sessions = 4096,
    lease: Lease = 3600.0,
    eval_type: EvalType = "",
    harness_arg: HarnessArg = None,
) -> None:
    from rollbook.gym.server import ServeOptions, serve_gym
    from rollbook.processes import run_event_loop

    if role not in ("resources", "agent"):
        raise UsageError(f"--as {role}: resources or agent")
    options = ServeOptions(
        env=env,
        data=data,
        template=prompt_template,
        eval_type=eval_type,
        harness_args=o.parse_pairs("--harness-arg", harness_arg or []),
        host=host,
        port=port,
        data_dir=data_dir,
        reuse=reuse,
        head=head,
        role=cast(Literal["resources", "agent"], role),
        limits=limits,
        settings=Settings(concurrency=concurrency, **key, **judge),
        judge_name=judge_name,
        lease_s=lease,
        sessions=sessions,
        model=model or [],
        model_name=model_name,
        sampling=sampling,
        tool_format=cast(ToolFormat, tool_format),
        seed=seed,
    )
    run_event_loop(lambda: serve_gym(options, lambda served: print(served.url, flush=True), o.print_note))


ModelUrl = Annotated[
    str, typer.Option("--model-url", metavar="URL", help="The endpoint that answers.", show_default=False)
]
ModelId = Annotated[
    str,
    typer.Option(
        "--model-name", metavar="NAME", help=list_parameters(RunOptions)["model_name"].description, show_default=False
    ),
]
ConfigOut = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The YAML; the rest goes beside it.")]
GymHost = Annotated[str, typer.Option("--host", help="Where the environment's server is to be.")]
GymPort = Annotated[
    int | None,
    typer.Option(
        "--port", min=1, max=65535, help="Likewise. [default: one derived from the environment and its arguments]"
    ),
]
Domain = Annotated[str, typer.Option("--domain", help="What Gym is to call its field: math, coding, agent, ...")]
ModelKeyEnv = Annotated[
    str, typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the model's key.")
]
JudgeUrls = Annotated[list[str] | None, typer.Option("--judge", metavar="URL", help="The server asks this judge.")]


def gym_config_command(
    env: o.EnvironmentArg,
    model_url: ModelUrl,
    model_name: ModelId,
    out: ConfigOut = Path("config.yaml"),
    host: GymHost = "127.0.0.1",
    port: GymPort = None,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    limit: o.Limit = None,
    domain: Domain = "other",
    api_key_env: ModelKeyEnv = "OPENAI_API_KEY",
    judge: JudgeUrls = None,
    judge_name: o.JudgeName = "",
    eval_type: EvalType = "",
    harness_arg: HarnessArg = None,
) -> None:
    from rollbook.gym import write_deployment
    from rollbook.gym.server import ServeOptions

    options = ServeOptions(
        env=env,
        data=data,
        template=prompt_template,
        eval_type=eval_type,
        harness_args=o.parse_pairs("--harness-arg", harness_arg or []),
        host=host,
        port=port or 0,
        judge_name=judge_name,
    )
    deployment = write_deployment(
        options, out, model_url, model_name, judges=judge or [], limit=limit, domain=domain, api_key_env=api_key_env
    )
    print(f"{out}: {deployment.name}, {deployment.name}_agent and policy_model")
    print(f"{deployment.data}: {deployment.rows} rows")
    print(f"{deployment.shim}: how Gym starts the server at http://{host}:{deployment.port}")


KEY_VARIABLE = "ROLLBOOK_GATEWAY_KEY"

Upstream = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="URL",
        help="Who answers: an OpenAI-compatible endpoint; repeated: replicas. [default: the embedded model]",
    ),
]
RecordsOut = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="DIR", help="Write the record of each ended rollout there.")
]
MaxRollouts = Annotated[
    int, typer.Option("--rollouts", metavar="N", min=1, help="Rollouts open at once; more: HTTP 429.")
]


@compose_options(
    key=o.API_KEY,
    sampling=o.make_struct(Sampling),
    limits=o.make_struct(Limits, "rollout_s", "max_turns", "max_tokens_total"),
    timeouts=o.take_settings("call_s", "outage_s"),
)
def gateway_command(
    upstream: Upstream = None,
    host: Host = "127.0.0.1",
    port: o.Port = 0,
    model_name: o.ModelName = "",
    *,
    key: dict[str, JSON],
    out: RecordsOut = None,
    seed: o.Seed = 0,
    sampling: Sampling,
    limits: Limits,
    continue_tokens: o.ContinueTokens = False,
    timeouts: dict[str, JSON],
    rollouts: MaxRollouts = 4096,
) -> None:
    from rollbook.gateway import GatewayOptions, RolloutDefaults, serve_gateway
    from rollbook.processes import run_event_loop

    options = GatewayOptions(
        upstream=upstream or [],
        model_name=model_name,
        host=host,
        port=port,
        out=None if out is None else str(out),
        settings=Settings(**key, **timeouts),
        defaults=RolloutDefaults(sampling, limits, seed, rollouts=rollouts, continue_tokens=continue_tokens),
    )
    secret = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(24)
    run_event_loop(lambda: serve_gateway(options, secret, lambda url: _announce_gateway(url, secret), o.print_note))


def _announce_gateway(url: str, key: str) -> None:
    print(url, flush=True)
    if not os.environ.get(KEY_VARIABLE):
        o.print_note(f"the key that opens and reads rollouts, good for this start ({KEY_VARIABLE} sets one): {key}")
