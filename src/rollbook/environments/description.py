"""What an environment is, for a person who will run it: its rows, an example task, its scoring and its options."""

from __future__ import annotations

import inspect
import itertools
import tempfile
from pathlib import Path

import msgspec

from rollbook.core import JSON, JUDGE, Message, encode
from rollbook.environments.catalogue import CatalogueEntry, find_entry
from rollbook.environments.environment import Environment, overrides, parameters_of
from rollbook.environments.registry import BUILT_IN, find_class, parse_spec, resolve
from rollbook.environments.tools import tool_schemas
from rollbook.errors import UsageError

ROW_PARAMETERS = {"data": "--data FILE", "template": "--prompt-template FILE"}
GIVEN_BY_SPEC = ("name", "url")
"""Parameters that are part of the spec itself: reasoning_gym:NAME, http://HOST:PORT."""


class EnvironmentOption(msgspec.Struct, frozen=True):
    """A parameter of an environment: an option of the command line, or `key=value` behind the `?` of the spec."""

    name: str
    default: JSON = None
    required: bool = False


class ExampleTask(msgspec.Struct, frozen=True):
    """A task as the model gets it. `row` is the row it was made from, where that is the environment's own example."""

    id: str
    messages: list[Message]
    tools: list[JSON] = []
    row: dict[str, JSON] | None = None


class EnvironmentDescription(msgspec.Struct, frozen=True):
    """The description of an environment. Without an example, `no_example` says why."""

    name: str
    description: str
    about: str
    scoring: str
    judge: str
    row_fields: dict[str, str]
    options: list[EnvironmentOption]
    prompt_template: str = ""
    data: str = ""
    """Where its rows are, for an entry of the catalogue."""
    licence: str = ""
    example: ExampleTask | None = None
    no_example: str = ""


def describe_environment(spec: str, data: str | None = None, template: str | None = None) -> EnvironmentDescription:
    """Describe the environment of a spec. Its example task is the first of `data`, else of its own."""
    cls = find_class(spec)
    described = EnvironmentDescription(
        name=spec,
        description=cls.description,
        about=inspect.cleandoc(cls.__dict__.get("__doc__") or ""),
        scoring=_describe_scoring(cls),
        judge="required" if cls.needs_judge or JUDGE in cls.roles else "optional" if overrides(cls, "appeal") else "",
        row_fields=dict(cls.row_fields),
        options=_list_options(cls),
        prompt_template=cls.prompt_template,
    )
    entry = find_entry(spec.partition("?")[0])
    if entry is not None and spec.partition("?")[0] not in BUILT_IN:
        described = _describe_entry(described, entry)
        if data is None:
            way = f"rollbook envs {spec} --data FILE shows the first task of a file with the same columns"
            return msgspec.structs.replace(described, no_example=f"its rows are on the hub; {way}")
    missing = _find_missing_name(spec, cls)
    if missing:
        return msgspec.structs.replace(described, no_example=missing)
    try:
        return msgspec.structs.replace(described, example=_make_example(spec, cls, data, template))
    except UsageError as error:
        if data is not None or template is not None:
            raise
        return msgspec.structs.replace(described, no_example=str(error))


def _describe_entry(scorer: EnvironmentDescription, entry: CatalogueEntry) -> EnvironmentDescription:
    """Return the description of an entry of the catalogue, from that of the environment that scores it."""
    return msgspec.structs.replace(
        scorer,
        description=entry.about,
        about=f"Rows of the Hugging Face hub, scored by {entry.environment}.",
        row_fields=entry.columns,
        options=[_fill_option(option, entry) for option in scorer.options],
        prompt_template=entry.template,
        data=entry.data,
        licence=entry.licence,
    )


def _fill_option(option: EnvironmentOption, entry: CatalogueEntry) -> EnvironmentOption:
    """Return an option with the value that an entry gives it."""
    given = parse_spec(entry.environment).args | {ROW_PARAMETERS["data"]: entry.data}
    return EnvironmentOption(option.name, given[option.name]) if option.name in given else option


def _find_missing_name(spec: str, cls: type[Environment]) -> str:
    """Explain how to complete a spec that is only the first part of one."""
    parameters = parameters_of(cls)
    needed = [
        name for name in GIVEN_BY_SPEC if name in parameters and parameters[name].default is inspect.Parameter.empty
    ]
    if not needed or ":" in spec:
        return ""
    return f"an address is missing: {spec}://HOST:PORT" if needed == ["url"] else f"a name is missing: {spec}:NAME"


def _describe_scoring(cls: type[Environment]) -> str:
    """Return the first paragraph of what `verify` says of itself."""
    if not overrides(cls, "verify"):
        return ""
    return " ".join(inspect.cleandoc(cls.verify.__doc__ or "").partition("\n\n")[0].split())


def _list_options(cls: type[Environment]) -> list[EnvironmentOption]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = [each for each in parameters_of(cls).values() if each.kind in kinds and each.name not in GIVEN_BY_SPEC]
    return [
        EnvironmentOption(
            ROW_PARAMETERS.get(each.name, each.name),
            None if each.default is each.empty else msgspec.to_builtins(each.default),
            each.default is each.empty,
        )
        for each in taken
    ]


def _make_example(spec: str, cls: type[Environment], data: str | None, template: str | None) -> ExampleTask:
    """Return the first task: of the given rows, of the environment's own, or of its example row."""
    if data is None and cls.example_row and not _has_own_tasks(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "example.jsonl")
            path.write_bytes(encode(dict(cls.example_row)))
            return _first_task(spec, cls, str(path), template, dict(cls.example_row))
    return _first_task(spec, cls, data, template)


def _has_own_tasks(cls: type[Environment]) -> bool:
    """Whether there are tasks without rows: some need `data`, others only say so when their tasks are read."""
    parameter = parameters_of(cls).get("data")
    if parameter is None:
        return True
    if parameter.default is parameter.empty:
        return False
    try:
        return next(iter(cls().tasks()), None) is not None
    except UsageError:
        return False


def _first_task(
    spec: str, cls: type[Environment], data: str | None, template: str | None, row: dict[str, JSON] | None = None
) -> ExampleTask:
    loaded = resolve(spec, data, template)
    for task in itertools.islice(loaded.instance.tasks(), 1):
        return ExampleTask(task.id, task.messages, list(tool_schemas(cls)), row)
    raise UsageError(f"{spec} has no tasks")
