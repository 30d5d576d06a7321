"""A tool: a method of an environment that the model may call, described to it by its signature and docstring."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar, get_type_hints

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import UsageError

Method = TypeVar("Method", bound=Callable[..., object])

MARK = "__rollbook_tool__"
INJECTED = frozenset({"state"})
"""Parameters that Rollbook fills in: the model neither sees nor gives them."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def tool(method: Method) -> Method:
    """Mark a method as a tool: typed parameters, and a docstring whose `Args:` section explains them.

    A parameter called `state` is what `open` returned; it is handed in and not shown to the model.
    """
    name, around = getattr(method, "__name__", ""), sys._getframe(1).f_locals
    if "__qualname__" in around and getattr(around.get(name), MARK, False):  # in the body of one class
        raise UsageError(f"tool {getattr(method, '__qualname__', name)}: there is one of that name above; rename one")
    setattr(method, MARK, True)
    return method


class Tool(msgspec.Struct, frozen=True):
    """A tool taken apart: `arguments` is the struct that a call must fit, `takes` the names of all its parameters."""

    name: str
    description: str
    parameters: dict[str, JSON]
    arguments: type[msgspec.Struct]
    takes: frozenset[str]

    @property
    def schema(self) -> dict[str, JSON]:
        """As chat completions takes it."""
        shown = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": shown}


def is_name(name: str) -> bool:
    """Whether servers take this as a tool's name."""
    return _NAME.fullmatch(name) is not None


def tool_methods(cls: type) -> dict[str, Callable[..., object]]:
    """The tools of a class by name, inherited ones included, in the order of their definition."""
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    found = {name: inspect.getattr_static(cls, name) for name in names}
    functions = {name: getattr(value, "__func__", value) for name, value in found.items()}
    return {name: function for name, function in functions.items() if getattr(function, MARK, False)}


def tools_of(cls: type) -> list[dict[str, JSON]]:
    """The tools of an environment class as chat completions takes them: one function schema each."""
    return [tool.schema for tool in tools_in(cls)]


def tools_in(cls: type) -> list[Tool]:
    """The tools of an environment class; one that cannot be offered is a UsageError that names it."""
    return [_tool(cls, name, method) for name, method in tool_methods(cls).items()]


def _tool(cls: type, name: str, method: Callable[..., object]) -> Tool:
    where = f"tool {cls.__name__}.{name}"
    if not is_name(name):
        raise UsageError(f"{where}: models take names of up to 64 ASCII letters, digits, - and _; rename it")
    summary, explained = read_docstring(inspect.getdoc(method) or "")
    fields = [_field(where, p, hint) for p, hint in _shown(where, method)]
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    parameters = _parameters(where, arguments)
    for argument, text in explained.items():
        if argument in parameters["properties"]:
            parameters["properties"][argument]["description"] = text
    return Tool(name, summary, parameters, arguments, frozenset(inspect.signature(method).parameters))


def _parameters(where: str, model: type[msgspec.Struct]) -> dict[str, JSON]:
    try:
        _, others = msgspec.json.schema_components([model], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise UsageError(f"{where}: {str(error).splitlines()[0]}; use types that JSON can hold") from None
    schema: dict[str, JSON] = others.pop(model.__name__)
    schema.pop("title", None)
    schema.setdefault("required", [])
    return {**schema, **({"$defs": others} if others else {}), "additionalProperties": False}


def _shown(where: str, method: Callable[..., object]) -> list[tuple[inspect.Parameter, object]]:
    hints = _hints(where, method)
    shown = []
    for position, parameter in enumerate(inspect.signature(method).parameters.values()):
        if (position == 0 and parameter.name in ("self", "cls")) or parameter.name in INJECTED:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"{where}: parameter {parameter} cannot be given by name; write ordinary parameters")
        if parameter.name not in hints:
            raise UsageError(f"{where}: parameter {parameter.name!r} has no type; annotate it")
        shown.append((parameter, hints[parameter.name]))
    return shown


def _hints(where: str, method: Callable[..., object]) -> Mapping[str, object]:
    try:
        return get_type_hints(method, include_extras=True)
    except NameError as error:
        raise UsageError(f"{where}: {error}; annotations must name types of its own module") from None


def _field(where: str, parameter: inspect.Parameter, hint: object) -> tuple[str, JSON] | tuple[str, JSON, JSON]:
    if parameter.default is parameter.empty:
        return parameter.name, hint
    try:
        default = msgspec.to_builtins(parameter.default)
    except TypeError:
        raise UsageError(f"{where}: the default of {parameter.name!r} is not JSON") from None
    if isinstance(default, list | dict):
        return parameter.name, hint, msgspec.field(default_factory=lambda: default)
    return parameter.name, hint, default


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a Google-style docstring says: the text before its sections, and the meaning of each argument.

    >>> read_docstring("Look up.\\n\\nArgs:\\n    word: What to find,\\n        exactly.")
    ('Look up.', {'word': 'What to find, exactly.'})
    """
    sections: dict[str, list[str]] = {"": []}
    current = sections[""]
    for line in text.splitlines():
        if match := _SECTION.match(line):
            current = sections.setdefault("Args" if match[1] == "Arguments" else match[1], [])
        else:
            current.append(line)
    return "\n".join(sections[""]).strip(), _arguments(sections.get("Args", []))


def _arguments(lines: list[str]) -> dict[str, str]:
    meanings: dict[str, str] = {}
    indent, name = None, ""
    for line in filter(str.strip, lines):
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        match = _ARGUMENT.match(line.strip()) if depth == indent else None
        if match:
            name = match[1]
            meanings[name] = match[2]
        elif name:
            meanings[name] = f"{meanings[name]} {line.strip()}".strip()
    return meanings
