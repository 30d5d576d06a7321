"""The options of the command line, generated from the structs of core, and the few that only commands have.

A field annotated with `parameter` is an option: its name, help, range and default come from the struct. A command takes
the struct, or the values that were given, as one parameter (`compose_options`).
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_origin

import msgspec
import typer

from rollbook.core import (
    JSON,
    RESERVED_SAMPLING_KEYS,
    ClusterOptions,
    Limits,
    RunOptions,
    RunParameter,
    ServerSpec,
    Settings,
    StartOptions,
    decode,
    list_parameters,
    parse_price,
)
from rollbook.errors import UsageError

R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)
Struct: TypeAlias = type[msgspec.Struct]

GIVEN_ONLY: tuple[Struct, ...] = (Settings, ClusterOptions, ServerSpec)
"""Structs whose fields keep another value than their default where no option is given: an earlier start's, a file's."""
OPTION_TYPES = {"command": str}
"""Options whose type is not their field's."""


class OptionSet(NamedTuple):
    """Options that together make one value; `make` gets their values by the names of the parameters."""

    parameters: list[inspect.Parameter]
    make: Callable[[dict[str, Any]], object]


def compose_options(**sets: OptionSet) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Replace parameters of a command, given by name, by the options of a set; the command gets what the set makes.

    >>> words = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("first", "last")]
    >>> @compose_options(full_name=OptionSet(words, lambda values: " ".join(values.values())))
    ... def greet(full_name, loudly=False):
    ...     return f"Hello {full_name}"
    >>> list(inspect.signature(greet).parameters), greet(first="Ada", last="Lovelace")
    (['first', 'last', 'loudly'], 'Hello Ada Lovelace')
    """

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def wrapper(**values: object) -> R:
            for name, options in sets.items():
                own = {each.name: values.pop(each.name, each.default) for each in options.parameters}
                values[name] = options.make(own)
            return command(**values)

        _set_signature(wrapper, command, sets)
        return wrapper

    return decorate


def _set_signature(wrapper: Callable[..., object], command: Callable[..., object], sets: dict[str, OptionSet]) -> None:
    """Give the wrapper the signature that typer reads."""
    own = inspect.signature(command, eval_str=True)
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for mine in own.parameters.values()
        for each in (sets[mine.name].parameters if mine.name in sets else [mine])
    ]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    wrapper.__signature__ = own.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]


def list_options(struct: Struct, *names: str, after: dict[str, str] | None = None) -> list[inspect.Parameter]:
    """Return the options of a struct and of the structs in it, or those of the fields `names`, in the fields' order.

    `after` moves an option behind another one: help lists related options together, stored fields keep their order.
    """
    found: list[inspect.Parameter] = []
    parameters = list_parameters(struct)
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += list_options(field.type)
        elif field.name in (names or parameters) and parameters[field.name].details.on_command_line:
            found.append(_make_parameter(struct, parameters[field.name]))
    for name, other in (after or {}).items():
        moved = found.pop(_position(found, name))
        found.insert(_position(found, other) + 1, moved)
    return found


def _position(parameters: list[inspect.Parameter], name: str) -> int:
    return [each.name for each in parameters].index(name)


def _make_parameter(struct: Struct, field: RunParameter) -> inspect.Parameter:
    kind = _option_type(field)
    default = None if struct in GIVEN_ONLY or kind == list[str] or field.default is msgspec.NODEFAULT else field.default
    return inspect.Parameter(
        _argument(field),
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if default is not None else kind | None, field_option(struct, field.name)],
    )


def _argument(field: RunParameter) -> str:
    return field.flag.removeprefix("--").replace("-", "_")


def _option_type(field: RunParameter) -> Any:
    if field.name in OPTION_TYPES:
        return OPTION_TYPES[field.name]
    origins = {get_origin(kind) for kind in field.kinds}
    if origins & {list, dict}:
        return list[str]
    return field.kinds[0] if len(field.kinds) == 1 and origins == {None} else str


def field_option(struct: Struct, name: str) -> Any:
    """Return what typer has to know of a field, for a command that declares the option itself."""
    field = list_parameters(struct)[name]
    details = field.details
    return typer.Option(
        *field.flags, metavar=details.metavar, min=details.minimum, max=details.maximum, help=_make_help(struct, field)
    )


def _make_help(struct: Struct, field: RunParameter) -> str:
    default = field.details.shown_default
    if not default and struct is Settings and field.default and not isinstance(field.default, list):
        default = f"new run: {field.default if isinstance(field.default, str) else format(field.default, 'g')}"
    return f"{field.description} [{default}]" if default else field.description


def read_given(struct: Struct, values: dict[str, Any]) -> dict[str, JSON]:
    """Return the fields of a struct that were given, by their names; what was not given is left out."""
    given: dict[str, JSON] = {}
    for name, field in list_parameters(struct).items():
        value = values.get(_argument(field))
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{field.flag} {value}: not a finite number")
        if value is not None and value != []:
            given[name] = PARSERS[name](value) if name in PARSERS else value
    return given


def make_struct(struct: type[S], *names: str) -> OptionSet:
    """Return the options of a struct, or of the fields `names`, which make the struct."""
    return OptionSet(list_options(struct, *names), lambda values: struct(**read_given(struct, values)))


def take_settings(*names: str, after: dict[str, str] | None = None) -> OptionSet:
    """Return the options of Settings, or of the fields `names`, which make a dictionary of those that were given."""
    return OptionSet(list_options(Settings, *names, after=after), lambda values: read_given(Settings, values))


def parse_concurrency(text: str) -> int | str:
    """Parse -c: a whole number from 1, or auto."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"-c {text}: not a whole number from 1, nor auto")
    return int(text)


def parse_max_failures(text: str) -> str:
    """Check --max-failures: a count, or a share in percent."""
    if re.fullmatch(r"\d+|\d+(\.\d+)?%", text, re.ASCII):
        return text
    raise UsageError(f"--max-failures {text}: neither a number of rollouts (20) nor a share of them (1%)")


def check_price(text: str) -> str:
    """Check --price."""
    parse_price(text)
    return text


def parse_sampling(pairs: list[str]) -> dict[str, JSON]:
    """Parse --sampling: values are JSON where they are JSON, else text.

    >>> parse_sampling(["top_k=20", "stop=END"])
    {'top_k': 20, 'stop': 'END'}
    """
    extra = parse_pairs("--sampling", pairs, ", as in --sampling top_k=20")
    for key in extra:
        if key in ("temperature", "top_p", "max_tokens", *RESERVED_SAMPLING_KEYS):
            pair = next(pair for pair in pairs if pair.startswith(f"{key}="))
            raise UsageError(f"--sampling {pair}: {key} is not extra sampling; it has an option or is fixed")
    return extra


def parse_pairs(option: str, pairs: list[str], example: str = "") -> dict[str, JSON]:
    """Parse an option that is written key=value: values are JSON where they are JSON, else text."""
    found: dict[str, JSON] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} {pair}: write key=value{example}")
        try:
            found[key] = decode(text)
        except ValueError:
            found[key] = text
    return found


PARSERS: dict[str, Callable[[Any], JSON]] = {
    "concurrency": parse_concurrency,
    "max_failures": parse_max_failures,
    "price": check_price,
    "extra": parse_sampling,
}
"""How the text of an option becomes the value of its field, where typer cannot tell."""

SETTINGS = take_settings(after={"api_key_env": "workers", "connect_timeout": "call_timeout"})
JUDGE_SETTINGS = take_settings("judge_urls", "judge_key_env", "judge_s")
START = make_struct(StartOptions)
API_KEY = take_settings("api_key_env")
VERIFY_LIMITS = make_struct(Limits, "verify_s")

EnvironmentArg: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        help="gsm8k, path/to/file.py:Class, package.module:Class or reasoning_gym:NAME?key=value.",
        show_default=False,
    ),
]
RUN_HELP = "A run directory."
PORT_HELP = "0 takes a free one."
Run: TypeAlias = Annotated[Path, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)]
Port: TypeAlias = Annotated[int, typer.Option("--port", min=0, max=65535, help=PORT_HELP)]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit: TypeAlias = Annotated[int | None, field_option(RunOptions, "limit")]
Data: TypeAlias = Annotated[str | None, field_option(RunOptions, "data")]
PromptTemplate: TypeAlias = Annotated[str | None, field_option(RunOptions, "template")]
Out: TypeAlias = Annotated[str | None, field_option(RunOptions, "out")]
Seed: TypeAlias = Annotated[int, field_option(RunOptions, "seed")]
Model: TypeAlias = Annotated[list[str] | None, field_option(Settings, "urls")]
ModelName: TypeAlias = Annotated[str, field_option(RunOptions, "model_name")]
JudgeName: TypeAlias = Annotated[str, field_option(RunOptions, "judge_name")]
ContinueTokens: TypeAlias = Annotated[bool, field_option(RunOptions, "continue_tokens")]
ToolFormatName: TypeAlias = Annotated[str, field_option(RunOptions, "tool_format")]


def print_note(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)
