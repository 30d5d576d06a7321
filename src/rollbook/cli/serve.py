"""`rollbook serve`: an environment for NeMo Gym, as a resources server or as an agent."""

from __future__ import annotations

import sys
from typing import Annotated, Literal, cast

import typer

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Sampling, Settings, ToolFormat
from rollbook.errors import UsageError

Host = Annotated[str, typer.Option("--host", help="Beyond loopback only on purpose: there is no password.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Write the environment's tasks there, as rows of Gym.")
]
Role = Annotated[
    str, typer.Option("--as", metavar="ROLE", help="resources: tools and verifier; agent: whole rollouts.")
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
AtOnce = Annotated[int, typer.Option("-c", "--concurrency", metavar="N", min=1, help="Rollouts of an agent at once.")]


def limits(
    verify_timeout: o.VerifyTimeout = o.LIMITS.verify_s,
    tool_timeout: o.ToolTimeout = o.LIMITS.tool_s,
    timeout: o.Timeout = o.LIMITS.rollout_s,
    max_turns: o.MaxTurns = o.LIMITS.max_turns,
    max_tokens_total: o.MaxTokensTotal = o.LIMITS.max_tokens_total,
    tool_chars: o.ToolChars = o.LIMITS.tool_chars,
    stop_repeats: o.StopRepeats = o.LIMITS.stop_repeats,
) -> Limits:
    """The limits of every rollout."""
    o.finite(verify_timeout=verify_timeout, tool_timeout=tool_timeout, timeout=timeout)
    return Limits(
        verify_s=verify_timeout,
        tool_s=tool_timeout,
        rollout_s=timeout,
        max_turns=max_turns,
        max_tokens_total=max_tokens_total,
        tool_chars=tool_chars,
        stop_repeats=stop_repeats,
    )


def sampling(
    temperature: o.Temperature = o.SAMPLING.temperature,
    top_p: o.TopP = o.SAMPLING.top_p,
    max_tokens: o.MaxTokens = o.SAMPLING.max_tokens,
    extra: o.Extra = None,
) -> Sampling:
    """How an agent samples where a row does not say."""
    return Sampling(temperature, top_p, max_tokens, o.extra_sampling(extra))


@gathered("limited", limits)
@gathered("sampled", sampling)
@gathered("judged", o.judged)
def command(
    env: o.Target,
    host: Host = "127.0.0.1",
    port: Port = 0,
    data_dir: DataDir = None,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    role: Role = "resources",
    head: Head = False,
    model: o.Model = None,
    model_name: o.ModelName = "",
    api_key_env: o.ApiKeyEnv = None,
    concurrency: AtOnce = 64,
    tool_format: o.ToolFormatName = "auto",
    seed: o.Seed = 0,
    *,
    sampled: Sampling,
    limited: Limits,
    judge_name: o.JudgeName = "",
    judged: dict[str, JSON],
    sessions: Sessions = 4096,
    lease: Lease = 3600.0,
    eval_type: EvalType = "",
    harness_arg: HarnessArg = None,
) -> None:
    from rollbook.collect.loop import on_fast_loop
    from rollbook.wire.gym.serve import Serving, serve_gym

    if role not in ("resources", "agent"):
        raise UsageError(f"--as {role}: resources or agent")
    given = {**judged, **({} if api_key_env is None else {"api_key_env": api_key_env})}
    asked = Serving(
        env=env,
        data=data,
        template=prompt_template,
        eval_type=eval_type,
        harness_args=pairs("--harness-arg", harness_arg),
        host=host,
        port=port,
        data_dir=data_dir,
        head=head,
        role=cast(Literal["resources", "agent"], role),
        limits=limited,
        settings=Settings(concurrency=concurrency, **given),
        judge_name=judge_name,
        lease_s=lease,
        sessions=sessions,
        model=model or [],
        model_name=model_name,
        sampling=sampled,
        tool_format=cast(ToolFormat, tool_format),
        seed=seed,
    )
    on_fast_loop(lambda: serve_gym(asked, lambda served: print(served.url, flush=True), note))


def note(line: str) -> None:
    """What has failed, on standard error."""
    print(line, file=sys.stderr, flush=True)


def pairs(option: str, given: list[str] | None) -> dict[str, JSON]:
    """The values of an option that is written key=value: JSON where they are JSON, else text."""
    found: dict[str, JSON] = {}
    for pair in given or []:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} {pair}: write key=value")
        found[key] = o.value_of(text)
    return found
