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
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

import msgspec
import typer

from rollbook.core import (
    GROUPS,
    JSON,
    JSON_ERRORS,
    ClusterOptions,
    Limits,
    Routing,
    RunOptions,
    RunParameter,
    ServerSpec,
    Settings,
    StartOptions,
    check_extra_sampling,
    decode,
    list_parameters,
    parse_price,
    parse_roles,
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


def list_options(
    struct: Struct, *names: str, after: dict[str, str] | None = None, show_defaults: bool = True
) -> list[inspect.Parameter]:
    """Return the options of a struct and of the structs in it, or those of the fields `names`, in the fields' order.

    `after` moves an option behind another one: help lists related options together, stored fields keep their order.
    """
    found: list[inspect.Parameter] = []
    parameters = list_parameters(struct)
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += list_options(field.type, show_defaults=show_defaults)
        elif field.name in (names or parameters) and parameters[field.name].details.on_command_line:
            found.append(_make_parameter(struct, parameters[field.name], show_defaults))
    for name, other in (after or {}).items():
        moved = found.pop(_position(found, name))
        found.insert(_position(found, other) + 1, moved)
    return found


def _position(parameters: list[inspect.Parameter], name: str) -> int:
    return [each.name for each in parameters].index(name)


def _make_parameter(struct: Struct, field: RunParameter, show_default: bool) -> inspect.Parameter:
    kind = _option_type(field)
    default = None if struct in GIVEN_ONLY or kind == list[str] or field.default is msgspec.NODEFAULT else field.default
    return inspect.Parameter(
        _argument(field),
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[
            kind if default is not None else kind | None, field_option(struct, field.name, show_default)
        ],
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


def field_option(struct: Struct, name: str, show_default: bool = True) -> Any:
    """Return what typer needs of a field, for a command that declares the option itself."""
    field = list_parameters(struct)[name]
    details = field.details
    return typer.Option(
        *field.flags,
        metavar=details.metavar,
        min=details.minimum,
        max=details.maximum,
        help=f"{field.description}{_format_default(field) if show_default else ''}",
        show_default=False,
        rich_help_panel=GROUPS[details.group],
        callback=check_path if details.metavar == "DIR" else None,
    )


def _format_default(field: RunParameter) -> str:
    """Return a default in brackets; it is part of the text, because typer is given none where a file may have one."""
    default = field.details.shown_default or field.default
    if default in ("", None, msgspec.NODEFAULT) or isinstance(default, bool | list | dict):
        return ""
    return f" [default: {format(default, 'g') if isinstance(default, float) else default}]"


def check_path(value: Any) -> Any:
    """Refuse a URL where a path is needed; a list is checked item by item."""
    if value:
        from rollbook.book import refuse_url

        for path in value if isinstance(value, list) else [value]:
            refuse_url(path)
    return value


def read_given(struct: Struct, values: dict[str, Any]) -> dict[str, JSON]:
    """Return the fields of a struct that were given, by their names; what was not given is left out."""
    given: dict[str, JSON] = {}
    for name, field in list_parameters(struct).items():
        value = values.get(_argument(field))
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{field.flag} {value}: not a finite number")
        if value not in (None, [], ()):
            given[name] = PARSERS[name](value) if name in PARSERS else value
    return given


def make_struct(struct: type[S], *names: str) -> OptionSet:
    """Return the options of a struct, or of the fields `names`, which make the struct."""
    return OptionSet(list_options(struct, *names), lambda values: struct(**read_given(struct, values)))


def take_settings(*names: str, after: dict[str, str] | None = None, show_defaults: bool = True) -> OptionSet:
    """Return the options of Settings, or of the fields `names`, which make a dictionary of those that were given."""
    options = list_options(Settings, *names, after=after, show_defaults=show_defaults)
    return OptionSet(options, lambda values: read_given(Settings, values))


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


def check_routing(text: str) -> str:
    """Check --routing."""
    known = get_args(Routing)
    if text not in known:
        raise UsageError(f"--routing {text}: known are {' and '.join(known)}")
    return text


def check_price(text: str) -> str:
    """Check --price."""
    parse_price(text)
    return text


def parse_sampling(pairs: list[str], option: str = "--sampling") -> dict[str, JSON]:
    """Parse --sampling: values are JSON where they are JSON, else text.

    >>> parse_sampling(["top_k=20", "stop=END", "seed=null"])
    {'top_k': 20, 'stop': 'END', 'seed': None}
    """
    extra = parse_pairs(option, pairs, f", as in {option} top_k=20")
    check_extra_sampling(extra, option)
    return extra


def parse_pairs(option: str, pairs: list[str], example: str = "") -> dict[str, JSON]:
    """Parse an option that is written key=value: values are JSON where they are JSON, else text."""
    found: dict[str, JSON] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} {pair}: write key=value{example}")
        if key in found:
            raise UsageError(f"{option} {pair}: {key} is given twice; give one of them")
        try:
            found[key] = decode(text)
        except JSON_ERRORS:
            found[key] = text
    return found


def parse_headers(pairs: list[str]) -> dict[str, JSON]:
    """Parse --header: the name of a header, and of the variable that holds its value.

    >>> parse_headers(["api-key=AZURE_OPENAI_API_KEY"])
    {'api-key': 'AZURE_OPENAI_API_KEY'}
    """
    from rollbook.models import check_headers

    found: dict[str, JSON] = {}
    for pair in pairs:
        name, equals, variable = pair.partition("=")
        check_headers({name if equals else "": variable})
        found[name] = variable
    return found


PARSERS: dict[str, Callable[[Any], JSON]] = {
    "concurrency": parse_concurrency,
    "max_failures": parse_max_failures,
    "price": check_price,
    "routing": check_routing,
    "extra": parse_sampling,
    "judge_sampling": partial(parse_sampling, option="--judge-sampling"),
    "headers": parse_headers,
    "roles": parse_roles,
}
"""How the text of an option becomes the value of its field, where typer cannot tell."""

LAST_SETTINGS = take_settings(after={"connect_timeout": "call_timeout"}, show_defaults=False)
"""For a run that was started before: what is not given stays as its last start had it, so there are no defaults."""
JUDGE_SETTINGS = take_settings("judge_urls", "judge_key_env", "judge_sampling", "judge_s", "roles")
START = make_struct(StartOptions)
API_KEY = take_settings("api_key_env", "headers")
VERIFY_LIMITS = make_struct(Limits, "verify_s")


def complete_environment(incomplete: str) -> list[str]:
    """Return the environments whose names begin so, for a shell that completes the line."""
    from rollbook.environments import list_names

    return [name for name in list_names() if name.startswith(incomplete)]


EnvironmentArg: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        autocompletion=complete_environment,
        help="A name (see rollbook envs), path/to/file.py:Class, or package.module:Class.",
        show_default=False,
    ),
]
RUN_HELP = "A run directory."
PORT_HELP = "The port to listen on; 0 takes a free one."
OUTPUT, CLUSTER = GROUPS["output"], GROUPS["cluster"]
Run: TypeAlias = Annotated[Path, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)]
Port: TypeAlias = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help=PORT_HELP)]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the results as JSON.", rich_help_panel=OUTPUT)]
Limit: TypeAlias = Annotated[int | None, field_option(RunOptions, "limit")]
Data: TypeAlias = Annotated[str | None, field_option(RunOptions, "data")]
PromptTemplate: TypeAlias = Annotated[str | None, field_option(RunOptions, "template")]
AllowNetwork: TypeAlias = Annotated[bool, field_option(RunOptions, "allow_network")]
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
