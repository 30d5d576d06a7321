"""What an environment is, for a person who wants to run it: its rows, an example task, its scoring and its options."""

from __future__ import annotations

import inspect
import itertools
import tempfile
from pathlib import Path

import msgspec

from rollbook.core import JSON, Message, encode
from rollbook.environments.environment import Environment, overrides, parameters_of
from rollbook.environments.registry import find_class, resolve
from rollbook.environments.tools import tool_schemas
from rollbook.errors import UsageError

ROW_PARAMETERS = {"data": "--data FILE", "template": "--prompt-template FILE"}
GIVEN_BY_SPEC = ("name", "url")
"""Parameters that stand in the spec itself: reasoning_gym:NAME, http://HOST:PORT."""


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
    """All that is said of an environment. Without an example, `no_example` says why."""

    name: str
    description: str
    about: str
    scoring: str
    judge: str
    row_fields: dict[str, str]
    options: list[EnvironmentOption]
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
        judge="required" if cls.needs_judge else "optional" if overrides(cls, "appeal") else "",
        row_fields=dict(cls.row_fields),
        options=_list_options(cls),
    )
    missing = _find_missing_name(spec, cls)
    if missing:
        return msgspec.structs.replace(described, no_example=missing)
    try:
        return msgspec.structs.replace(described, example=_make_example(spec, cls, data, template))
    except UsageError as error:
        if data is not None or template is not None:
            raise
        return msgspec.structs.replace(described, no_example=str(error))


def _find_missing_name(spec: str, cls: type[Environment]) -> str:
    """Say how a spec goes on that is only the first part of one."""
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
