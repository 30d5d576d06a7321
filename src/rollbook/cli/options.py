"""The options of the command line, each declared once: its names, its help, and what its text may be.

A command that takes what some function makes of options has that function's options (`compose_options`).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer

from rollbook.core import JSON, RESERVED_SAMPLING_KEYS, Limits, Sampling, decode
from rollbook.errors import UsageError

R = TypeVar("R")


def compose_options(name: str, make: Callable[..., object]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Put the parameters of `make` in the place of the parameter `name`, which becomes what it makes of them.

    >>> @compose_options("full_name", lambda first, last: f"{first} {last}")
    ... def greet(full_name, loudly=False):
    ...     return f"Hello {full_name}"
    >>> list(inspect.signature(greet).parameters), greet(first="Ada", last="Lovelace")
    (['first', 'last', 'loudly'], 'Hello Ada Lovelace')
    """
    taken = inspect.signature(make, eval_str=True).parameters

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def called(**values: object) -> R:
            made = make(**{option: values.pop(option) for option in taken if option in values})
            return command(**values, **{name: made})

        _set_signature(called, command, name, list(taken.values()))
        return called

    return decorate


def _set_signature(
    called: Callable[..., object], command: Callable[..., object], name: str, taken: list[inspect.Parameter]
) -> None:
    """Give a function the signature that typer and the next `compose_options` read."""
    own = inspect.signature(command, eval_str=True)
    spread = [p for mine in own.parameters.values() for p in (taken if mine.name == name else [mine])]
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in spread]
    called.__annotations__ = {p.name: p.annotation for p in named}
    called.__signature__ = own.replace(parameters=named, return_annotation=None)  # type: ignore[attr-defined]


EnvironmentArg: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        help="gsm8k, path/to/file.py:Class, package.module:Class or reasoning_gym:NAME?key=value.",
        show_default=False,
    ),
]
EnvironmentOrBlendArg: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        help="gsm8k, path/to/file.py:Class, package.module:Class, reasoning_gym:NAME?key=value, http://host:port, "
        "or blend.yaml.",
        show_default=False,
    ),
]
Run: TypeAlias = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]
StartedRun: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run directory. What is not given below stays as its last start had it.",
        show_default=False,
    ),
]
Samples: TypeAlias = Annotated[int, typer.Option("-k", "--samples", metavar="N", min=1, help="Tries at each task.")]
NewSamples: TypeAlias = Annotated[
    int,
    typer.Option(
        "-k", "--samples", metavar="N", min=1, help="Tries at each task, those it has included.", show_default=False
    ),
]
Limit: TypeAlias = Annotated[
    int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="Only the first so many tasks.")
]
Data: TypeAlias = Annotated[
    str | None,
    typer.Option("--data", metavar="FILE", help="Rows of your own: JSONL, CSV, Parquet, or hf://org/name."),
]
PromptTemplate: TypeAlias = Annotated[
    str | None,
    typer.Option("--prompt-template", metavar="FILE", help="Makes each row's prompt: {field} stands for its field."),
]
TaskId: TypeAlias = Annotated[
    list[str] | None, typer.Option("--task", metavar="ID", help="Only this task; may be repeated.")
]
SampleIndex: TypeAlias = Annotated[
    int | None, typer.Option("--sample", metavar="K", min=0, help="Only this sample of each task, from 0.")
]
Out: TypeAlias = Annotated[
    str | None,
    typer.Option("-o", "--out", metavar="DIR", help="The run directory; must be new. [default: under runs/]"),
]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", metavar="N", help="Decides every sample's own seed.")]
Model: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--model",
        metavar="URL",
        help="An OpenAI-compatible endpoint, or scripted:FILE; repeated: replicas. [new run: the embedded model]",
    ),
]
ModelName: TypeAlias = Annotated[
    str, typer.Option("--model-name", metavar="NAME", help="What the endpoint calls it. [default: its only model]")
]
ApiKeyEnv: TypeAlias = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the key. [new run: OPENAI_API_KEY]"),
]
Judge: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--judge", metavar="URL", help="The endpoint that is asked where the rule says no; repeated: replicas."
    ),
]
JudgeName: TypeAlias = Annotated[
    str, typer.Option("--judge-name", metavar="NAME", help="What the judge is called there. [default: its only model]")
]
JudgeKeyEnv: TypeAlias = Annotated[
    str | None,
    typer.Option("--judge-key-env", metavar="NAME", help="The variable with the judge's key. [new run: JUDGE_API_KEY]"),
]
JudgeTimeout: TypeAlias = Annotated[
    float | None,
    typer.Option("--judge-timeout", metavar="S", min=0.001, help="All questions about one rollout. [new run: 300]"),
]
Temperature: TypeAlias = Annotated[
    float, typer.Option("--temperature", metavar="T", min=0.0, help="Sampling temperature.")
]
TopP: TypeAlias = Annotated[float, typer.Option("--top-p", metavar="P", min=0.0, max=1.0, help="Nucleus sampling.")]
MaxTokens: TypeAlias = Annotated[int, typer.Option("--max-tokens", metavar="N", min=1, help="Tokens of one answer.")]
ExtraSampling: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--sampling", metavar="KEY=VALUE", help="Anything else the endpoint takes; may be repeated."),
]
Timeout: TypeAlias = Annotated[float, typer.Option("--timeout", metavar="S", min=0.001, help="One whole rollout.")]
VerifyTimeout: TypeAlias = Annotated[
    float, typer.Option("--verify-timeout", metavar="S", min=0.001, help="One verification.")
]
MaxTurns: TypeAlias = Annotated[
    int, typer.Option("--max-turns", metavar="N", min=1, help="Model calls of one rollout with tools or replies.")
]
MaxTokensTotal: TypeAlias = Annotated[
    int | None,
    typer.Option("--max-tokens-total", metavar="N", min=1, help="Tokens of all answers of one rollout together."),
]
StopRepeats: TypeAlias = Annotated[
    int | None,
    typer.Option("--stop-repeats", metavar="N", min=2, help="End a rollout at the same tool calls N times running."),
]
ToolTimeout: TypeAlias = Annotated[
    float,
    typer.Option("--tool-timeout", metavar="S", min=0.001, help="One tool call, reply or other step of the state."),
]
ToolChars: TypeAlias = Annotated[
    int, typer.Option("--tool-chars", metavar="N", min=1, help="Characters of a tool's output that the model is shown.")
]
AgentName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--agent",
        metavar="program:COMMAND",
        help="An outside program that plays every rollout. [default: what the environment needs]",
    ),
]
ContinueTokens: TypeAlias = Annotated[
    bool,
    typer.Option("--continue-tokens", help="Ask later turns with the very ids of the earlier ones, where vLLM can."),
]
ToolFormatName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--tool-format",
        metavar="NAME",
        help="native: the server parses tool calls; schema: as JSON text held to a schema; text: as free text; "
        "auto: schema for the embedded model, else native.",
    ),
]
Concurrency: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "-c", "--concurrency", metavar="INT|auto", help="Rollouts at once. [new run: 64; 16 for the embedded model]"
    ),
]
Workers: TypeAlias = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Worker processes, here or there. [new run: 1]")
]
CallTimeout: TypeAlias = Annotated[
    float | None, typer.Option("--call-timeout", metavar="S", min=0.001, help="One model call. [new run: 600]")
]
ConnectTimeout: TypeAlias = Annotated[
    float | None, typer.Option("--connect-timeout", metavar="S", min=0.001, help="One connection. [new run: 10]")
]
Outage: TypeAlias = Annotated[
    float | None,
    typer.Option("--outage", metavar="S", min=0.0, help="How long no endpoint may answer. [new run: 300]"),
]
FailFast: TypeAlias = Annotated[
    bool | None, typer.Option("--fail-fast/--no-fail-fast", help="Stop at the first rollout that fails.")
]
MaxFailures: TypeAlias = Annotated[
    str | None, typer.Option("--max-failures", metavar="N|P%", help="Stop when more rollouts than this have failed.")
]
Offline: TypeAlias = Annotated[
    bool | None, typer.Option("--offline/--no-offline", help="Download nothing; not even the embedded model.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Retry: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--retry", metavar="KIND", help="Which failures to try again: a kind, infra, data, all, none."),
]

SAMPLING = Sampling()
LIMITS = Limits()


def parse_concurrency(text: str | None) -> int | str | None:
    """The value of -c: a whole number from 1, or auto."""
    if text is None or text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"-c {text}: not a whole number from 1, nor auto")
    return int(text)


def parse_max_failures(text: str | None) -> str | None:
    """The value of --max-failures: a count, or a share in percent."""
    if text is None or re.fullmatch(r"\d+|\d+(\.\d+)?%", text, re.ASCII):
        return text
    raise UsageError(f"--max-failures {text}: neither a number of rollouts (20) nor a share of them (1%)")


def parse_sampling(pairs: list[str] | None) -> dict[str, JSON]:
    """The values of --sampling: JSON where they are JSON, else text.

    >>> parse_sampling(["top_k=20", "stop=END"])
    {'top_k': 20, 'stop': 'END'}
    """
    extra = {}
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--sampling {pair}: write key=value, as in --sampling top_k=20")
        if key in ("temperature", "top_p", "max_tokens", *RESERVED_SAMPLING_KEYS):
            raise UsageError(f"--sampling {pair}: {key} is not extra sampling; it has an option or is fixed")
        extra[key] = parse_value(text)
    return extra


def check_finite(**options: float | None) -> None:
    """Refuse what is a number to Python and nonsense to everyone else: nan, and a wait without end."""
    for name, value in options.items():
        if value is not None and not math.isfinite(value):
            raise UsageError(f"--{name.replace('_', '-')} {value}: not a finite number")


def parse_value(text: str) -> JSON:
    """A value that was written on the command line: JSON where it is JSON, else text."""
    try:
        return decode(text)
    except ValueError:
        return text


def collect_settings(
    model: Model = None,
    concurrency: Concurrency = None,
    workers: Workers = None,
    api_key_env: ApiKeyEnv = None,
    call_timeout: CallTimeout = None,
    connect_timeout: ConnectTimeout = None,
    outage: Outage = None,
    fail_fast: FailFast = None,
    max_failures: MaxFailures = None,
    offline: Offline = None,
    judge: Judge = None,
    judge_key_env: JudgeKeyEnv = None,
    judge_timeout: JudgeTimeout = None,
) -> dict[str, JSON]:
    """The operational settings that were given, by their names in Settings; what was not given is not there."""
    check_finite(call_timeout=call_timeout, connect_timeout=connect_timeout, outage=outage)
    given = {
        "urls": model or None,
        "concurrency": parse_concurrency(concurrency),
        "workers": workers,
        "call_s": call_timeout,
        "connect_s": connect_timeout,
        "outage_s": outage,
        "api_key_env": api_key_env,
        "fail_fast": fail_fast,
        "max_failures": parse_max_failures(max_failures),
        "offline": offline,
        **collect_judge_settings(judge, judge_key_env, judge_timeout),
    }
    return {name: value for name, value in given.items() if value is not None}


def collect_judge_settings(
    judge: Judge = None, judge_key_env: JudgeKeyEnv = None, judge_timeout: JudgeTimeout = None
) -> dict[str, JSON]:
    """The settings that are about the judge, likewise."""
    check_finite(judge_timeout=judge_timeout)
    given = {"judge_urls": judge or None, "judge_key_env": judge_key_env, "judge_s": judge_timeout}
    return {name: value for name, value in given.items() if value is not None}


Runs: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run directories; those of the same run are read as one.",
        show_default=False,
    ),
]
Ks: TypeAlias = Annotated[
    str | None,
    typer.Option("-k", metavar="K,...", help="Which numbers @k. [default: powers of two up to the samples]"),
]
Threshold: TypeAlias = Annotated[
    float, typer.Option("--threshold", metavar="X", help="The reward from which a rollout passes.")
]
Markdown: TypeAlias = Annotated[bool, typer.Option("--markdown", help="Print a table to paste.")]
Prefix: TypeAlias = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Put before the names of the numbers.")
]
ResamplingSeed: TypeAlias = Annotated[int, typer.Option("--seed", metavar="N", help="Decides what is drawn.")]


def parse_ks(text: str | None) -> list[int] | None:
    """The value of -k: whole numbers from 1, ascending and each once.

    >>> parse_ks("8,1,2,2")
    [1, 2, 8]
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) <= 100_000 for word in words):
        raise UsageError(f"-k {text}: write whole numbers from 1, as in -k 1,2,4,8")
    return sorted({int(word) for word in words})


def check_threshold(value: float) -> float:
    """The value of --threshold: a finite number."""
    check_finite(threshold=value)
    return value
