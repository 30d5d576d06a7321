"""Files of options: `--config FILE` reads the options of a command from YAML or TOML, `--save-config` writes them.

A key is an option's long name without dashes in front, `environment` is the argument. Options that may be repeated are
lists, and those of the form KEY=VALUE may also be mappings. What is on the command line has priority over the file.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer

from rollbook.cli.options import PARSERS, check_path
from rollbook.core import GROUPS, JSON, JSON_ERRORS, YamlFile, decode, encode, list_all_parameters
from rollbook.errors import UsageError

YAML_SUFFIXES, TOML_SUFFIX = (".yaml", ".yml"), ".toml"
ENVIRONMENT_KEY = "environment"
OWN_OPTIONS = ("config", "save")
"""Parameters that no file holds."""
MODELS_KEY, NAME_KEY = "models", "name"
LISTED_MODELS = "rollbook.models"
"""Under this key of a context's `meta`: the models that a file lists, by name, each with the options of its own."""
MODEL_GROUPS = ("model", "sampling", "limits")
"""The sections of options that a model of the list may have of its own."""


class ConfigEntry(NamedTuple):
    """A key of a file, its value, and the place to name in an error."""

    key: str
    value: JSON
    where: str


def apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of a file the defaults of the command; the callback of --config."""
    if path is not None and not context.resilient_parsing:
        context.default_map = read_config(context, path)
    return path


Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=apply_config,
        help="Read options from a YAML or TOML file; those on the command line win.",
        rich_help_panel=GROUPS["config"],
    ),
]
SaveConfig: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--save-config",
        metavar="FILE",
        callback=check_path,
        help="Write the options of this command to a new YAML or TOML file, then run.",
        rich_help_panel=GROUPS["config"],
    ),
]


def read_config(context: typer.Context, path: Path) -> dict[str, Any]:
    """Return the values of a file by the names of the command's parameters; a mistake names the file and the key."""
    parameters = _list_parameters(context)
    values: dict[str, Any] = {}
    for entry in _read_entries(path):
        key = entry.key.replace("_", "-")
        if key == MODELS_KEY and "each" in parameters:
            context.meta[LISTED_MODELS] = list(_read_models(context, parameters, entry))
            continue
        if key not in parameters:
            close = difflib.get_close_matches(key, parameters, n=1)
            close = [_list_short_names(parameters)[key]] if key in _list_short_names(parameters) else close
            guess = f"; did you mean {close[0]}?" if close else f"; see {context.command_path} --help"
            raise UsageError(f"{entry.where}: {context.command_path} has no option {entry.key!r}{guess}")
        parameter = parameters[key]
        if parameter.name in values:
            raise UsageError(f"{entry.where}: {entry.key} is given twice")
        values[parameter.name] = _check_value(context, parameter, entry)
    return values


def _read_models(
    context: typer.Context, parameters: dict[str, Any], entry: ConfigEntry
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the models of a list: each a text, as after -m, or a mapping of its own options."""
    if not isinstance(entry.value, list) or not entry.value:
        raise UsageError(f"{entry.where}: models: write a list of models, each a name or a mapping of its options")
    for number, each in enumerate(entry.value, 1):
        where = f"{entry.where}: models, number {number}"
        given = each if isinstance(each, dict) else {"model": each}
        own = {str(key).replace("_", "-"): value for key, value in given.items()}
        name = own.pop(NAME_KEY, "")
        if own.keys().isdisjoint(("model", "model-name", "base-url")):
            raise UsageError(f"{where}: it names no model; write model: and what follows -m, such as a URL")
        for key in own:
            field = FIELDS.get(key.replace("-", "_"))
            if key not in parameters or field is None or field.details.group not in MODEL_GROUPS or key == "seed":
                known = "those of the sections Model, Sampling and Limits, without seed"
                raise UsageError(f"{where}: {key} is no option of one model; there are name and {known}")
        values = {
            parameters[key].name: parameters[key].process_value(
                context, _check_value(context, parameters[key], ConfigEntry(key, value, where))
            )
            for key, value in own.items()
        }
        yield _check_model_name(name, where), values


def _check_model_name(name: JSON, where: str) -> str:
    from rollbook.engine import check_name

    try:
        return check_name(str(name)) if name else ""
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _list_parameters(context: typer.Context) -> dict[str, Any]:
    """Return what a file may hold: the parameters of the command by their keys."""
    found = {}
    for each in context.command.params:
        if each.name not in OWN_OPTIONS:
            is_option = each.param_type_name == "option"
            found[max(each.opts, key=len).removeprefix("--") if is_option else ENVIRONMENT_KEY] = each
    return found


def _list_short_names(parameters: dict[str, Any]) -> dict[str, str]:
    """Return the keys by the letters of their short options."""
    return {
        name.removeprefix("-"): key
        for key, each in parameters.items()
        for name in each.opts
        if each.param_type_name == "option" and not name.startswith("--")
    }


def _read_entries(path: Path) -> Iterator[ConfigEntry]:
    if path.suffix.lower() in YAML_SUFFIXES:
        file = YamlFile(path)
        for key, entry in file.read_mapping(file.root, "an option").items():
            yield ConfigEntry(key, file.read_value(entry), f"{path}:{entry.line}")
    else:
        _check_suffix("--config", path)
        for key, value in _read_toml(path).items():
            yield ConfigEntry(key, value, str(path))


def _check_suffix(option: str, path: Path) -> None:
    if path.suffix.lower() not in (*YAML_SUFFIXES, TOML_SUFFIX):
        raise UsageError(f"{option} {path}: the name must end in .yaml, .yml or .toml")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; check the path") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start + 1})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def _check_value(context: typer.Context, parameter: Any, entry: ConfigEntry) -> Any:
    """Return a value as the option takes it, after all the checks that the option makes."""
    try:
        value = _convert(parameter, entry.value)
        checked = parameter.process_value(context, value)
        field = FIELDS.get(parameter.name)
        if field is not None and field.name in PARSERS:
            PARSERS[field.name](checked)
    except typer.TyperException as error:
        raise UsageError(f"{entry.where}: {entry.key}: {error.message}") from None
    except UsageError as error:
        raise UsageError(f"{entry.where}: {entry.key}: {error}") from None
    return value


def _convert(parameter: Any, value: JSON) -> Any:
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise UsageError(f"write true or false, not {_show(value)}")
        return value
    if getattr(parameter, "multiple", False):
        return _convert_list(parameter, value)
    if isinstance(value, dict) and "=" in (parameter.metavar or ""):
        return ",".join(f"{key}={_convert_text(each)}" for key, each in value.items())
    kinds = FIELDS[parameter.name].kinds if parameter.name in FIELDS else (str,)
    if kinds in ((int,), (float,)):
        is_whole = kinds == (int,)
        if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
            raise UsageError(f"write a {'whole ' if is_whole else ''}number, not {_show(value)}")
        if not math.isfinite(value):
            raise UsageError("write a finite number")
        return value
    return _convert_text(value)


def _convert_list(parameter: Any, value: JSON) -> list[str]:
    """Return the values of an option that may be repeated; one text stands for a list of one."""
    if isinstance(value, dict):
        if "=" not in (parameter.metavar or ""):
            raise UsageError("write a list of texts, not a mapping")
        return [f"{key}={_format_pair_value(each)}" for key, each in value.items()]
    return [_convert_text(each) for each in (value if isinstance(value, list) else [value])]


def _format_pair_value(value: JSON) -> str:
    """Return the VALUE of KEY=VALUE: JSON, except for a text that cannot be taken for JSON."""
    try:
        if isinstance(value, str):
            decode(value)
    except JSON_ERRORS:
        return str(value)
    try:
        return encode(value).decode()
    except (TypeError, ValueError):
        raise UsageError(f"{_show(value)} cannot be written as JSON") from None


def _convert_text(value: JSON) -> str:
    """Return a text; a number is taken for one, because YAML makes a number of 20."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"write a text, not {_show(value)}")
    return str(value)


def _show(value: JSON) -> str:
    names = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return names.get(type(value)) or (str(value).lower() if isinstance(value, bool) else repr(value)[:80])


FIELDS = {key.replace("-", "_"): field for key, field in list_all_parameters().items()}
"""The fields of the structs by the names of the commands' parameters."""


def save_config(context: typer.Context, path: Path) -> None:
    """Write the options that were given to a new file: on the command line, or in the file of --config."""
    _check_suffix("--save-config", path)
    lines = []
    for key, parameter in _list_parameters(context).items():
        if was_given(context, parameter.name):
            value = context.params[parameter.name]
            if "ENV" not in (parameter.metavar or ""):  # such a value is the name of a variable
                _refuse_secret(key, value)
            lines.append(f"{key}{' = ' if path.suffix == TOML_SUFFIX else ': '}{_format_value(value)}\n")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(lines)
    except FileExistsError:
        raise UsageError(f"--save-config {path}: the file exists; choose another name, or delete it") from None
    except OSError as error:
        raise UsageError(f"--save-config {path}: {error.strerror}") from None


def was_given(context: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line, or in the file of --config."""
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP")


_SECRET = re.compile(
    r"://[^/\s]*:[^/\s]*@"  # a password in a URL
    r"|[?&][^=&\s]*(key|token|secret|sig|password)[^=&\s]*="  # or a key in its query
    r"|(api[-_]?key|secret|password)[=:\s]",
    re.IGNORECASE,
)


def _refuse_secret(key: str, value: object) -> None:
    """Refuse to write what looks like a secret; the message does not show it."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and _SECRET.search(text):
            raise UsageError(
                f"--save-config: --{key} seems to hold a secret, which must not be in a file; leave it out"
            )


def _format_value(value: object) -> str:
    """Return a value in the notation that YAML and TOML share."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else _quote(str(value))


def _quote(text: str) -> str:
    """Return a text in double quotes; whatever is not plain ASCII is escaped as both notations do."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"--save-config: {text!r} is not UTF-8") from None
    return f'"{"".join(map(_escape, text))}"'


def _escape(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if " " <= character <= "~":
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
