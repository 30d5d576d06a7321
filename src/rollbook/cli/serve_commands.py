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
from rollbook.core import GROUPS, JSON, Limits, RunOptions, Sampling, Settings, ToolFormat, list_parameters
from rollbook.errors import UsageError

Host = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help="The address to listen on; it has no password."),
]
GatewayHost = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on; clients need the key.")
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="Write the tasks there, as rows of NeMo Gym.", callback=o.check_path
    ),
]
Role = Annotated[
    str,
    typer.Option("--as", metavar="ROLE", help="Serve as resources (tools and verifier) or as agent (whole rollouts)."),
]
Reuse = Annotated[
    bool,
    typer.Option(
        "--reuse",
        help="Use a server that is already at the address, if it serves the same environment with the same arguments.",
    ),
]
Head = Annotated[bool, typer.Option("--head", help="Also answer as the head server, which lists servers.")]
EvalType = Annotated[
    str, typer.Option("--eval-type", metavar="NAME", help="The name of the server, passed on to a harness.")
]
HarnessArg = Annotated[
    list[str] | None,
    typer.Option(
        "--harness-arg", metavar="KEY=VALUE", help="An argument of harness:PACKAGE, not a secret; may be repeated."
    ),
]
Sessions = Annotated[
    int,
    typer.Option("--sessions", metavar="N", min=1, help="Maximum number of open states; more wait."),
]
Lease = Annotated[
    float, typer.Option("--lease", metavar="S", min=0.1, help="Seconds without use after which a state is closed.")
]
AgentConcurrency = Annotated[
    int,
    typer.Option("-c", "--concurrency", metavar="N", min=1, help="How many rollouts of an agent run at the same time."),
]


@compose_options(key=o.API_KEY, sampling=o.make_struct(Sampling), limits=o.make_struct(Limits), judge=o.JUDGE_SETTINGS)
def serve_command(
    env: o.EnvironmentArg,
    host: Host = "127.0.0.1",
    port: o.Port = 0,
    data_dir: DataDir = None,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    serve_as: Role = "resources",
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

    if serve_as not in ("resources", "agent"):
        raise UsageError(f"--as {serve_as}: resources or agent")
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
        role=cast(Literal["resources", "agent"], serve_as),
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
    str,
    typer.Option("-m", "--model", metavar="URL", help="The endpoint of the model that NeMo Gym calls."),
]
ModelId = Annotated[
    str,
    typer.Option(
        "--model-name", metavar="NAME", help=list_parameters(RunOptions)["model_name"].description, show_default=False
    ),
]
ConfigOut = Annotated[
    Path,
    typer.Option(
        "-o", "--out", metavar="FILE", help="The YAML file; the others are written next to it.", callback=o.check_path
    ),
]
GymHost = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The host of the environment's server.")]
GymPort = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="N",
        min=1,
        max=65535,
        help="The port of the environment's server. [default: derived from the environment and its arguments]",
    ),
]
Domain = Annotated[
    str, typer.Option("--domain", metavar="NAME", help="The domain for NeMo Gym: math, coding, agent, ...")
]
ModelKeyEnv = Annotated[
    str, typer.Option("--api-key-env", metavar="NAME", help="The environment variable that holds the model's key.")
]
JudgeUrls = Annotated[
    list[str] | None, typer.Option("--judge", metavar="URL", help="The endpoint of a judge that the server calls.")
]


def gym_config_command(
    env: o.EnvironmentArg,
    model: ModelUrl,
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
        options, out, model, model_name, judges=judge or [], limit=limit, domain=domain, api_key_env=api_key_env
    )
    print(f"{out}: {deployment.name}, {deployment.name}_agent and policy_model")
    print(f"{deployment.data}: {deployment.rows} rows")
    print(f"{deployment.shim}: how Gym starts the server at http://{host}:{deployment.port}")


KEY_VARIABLE = "ROLLBOOK_GATEWAY_KEY"

Upstream = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--model",
        metavar="URL",
        help="The OpenAI-compatible endpoint that answers; repeat it for replicas. [default: the embedded model]",
        rich_help_panel=GROUPS["model"],
    ),
]
RecordsOut = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        metavar="DIR",
        help="Write a record of each finished rollout to this folder.",
        callback=o.check_path,
    ),
]
MaxRollouts = Annotated[
    int,
    typer.Option("--rollouts", metavar="N", min=1, help="Maximum number of open rollouts; more get HTTP 429."),
]


@compose_options(
    key=o.API_KEY,
    sampling=o.make_struct(Sampling),
    limits=o.make_struct(Limits, "rollout_s", "max_turns", "max_tokens_total"),
    calls=o.take_settings("call_s", "outage_s", "routing"),
)
def gateway_command(
    model: Upstream = None,
    host: GatewayHost = "127.0.0.1",
    port: o.Port = 0,
    model_name: o.ModelName = "",
    *,
    key: dict[str, JSON],
    out: RecordsOut = None,
    seed: o.Seed = 0,
    sampling: Sampling,
    limits: Limits,
    continue_tokens: o.ContinueTokens = False,
    calls: dict[str, JSON],
    rollouts: MaxRollouts = 4096,
) -> None:
    from rollbook.gateway import GatewayOptions, RolloutDefaults, serve_gateway
    from rollbook.processes import run_event_loop

    options = GatewayOptions(
        upstream=model or [],
        model_name=model_name,
        host=host,
        port=port,
        out=None if out is None else str(out),
        settings=Settings(**key, **calls),
        defaults=RolloutDefaults(sampling, limits, seed, rollouts=rollouts, continue_tokens=continue_tokens),
    )
    secret = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(24)
    run_event_loop(lambda: serve_gateway(options, secret, lambda url: _announce_gateway(url, secret), o.print_note))


def _announce_gateway(url: str, key: str) -> None:
    print(url, flush=True)
    if not os.environ.get(KEY_VARIABLE):
        o.print_note(
            f"the key that opens and reads rollouts, valid until the gateway stops ({KEY_VARIABLE} sets one): {key}"
        )
