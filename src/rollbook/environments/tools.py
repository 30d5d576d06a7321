"""Tools: methods and offers that a model may call, their schemas, and calling them.

`@tool` marks a method of an environment; its signature and docstring describe it to the model. An environment may
offer more tools for one task. `Toolbox` checks the arguments of a call, reports mistakes to the model, and bounds the
output.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NoReturn, TypeVar, get_type_hints

import msgspec

from rollbook.core import JSON, ContentPart, encode
from rollbook.errors import RollbookError, RolloutFailed, UsageError

Method = TypeVar("Method", bound=Callable[..., object])

TOOL_MARK = "__rollbook_tool__"
INJECTED = frozenset({"container", "state"})
"""Parameters that Rollbook passes; they are not in the schema for the model."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class ToolOutput(msgspec.Struct, frozen=True):
    """The result of a tool that shows something: its text, and its images and sounds as parts of a message."""

    text: str
    shown: list[ContentPart]


def tool(method: Method) -> Method:
    """Mark a method as a tool: typed parameters, and a docstring whose `Args:` section explains them.

    A parameter called `state` gets what `open` returned, one called `container` the handle of the rollout's container;
    they are not shown to the model.
    """
    name, around = getattr(method, "__name__", ""), sys._getframe(1).f_locals
    if "__qualname__" in around and getattr(around.get(name), TOOL_MARK, False):  # in the body of one class
        raise UsageError(f"tool {getattr(method, '__qualname__', name)}: there is one of that name above; rename one")
    setattr(method, TOOL_MARK, True)
    return method


class Tool(msgspec.Struct, frozen=True):
    """A tool method: `arguments` is the struct that a call must fit, `takes` the names of all its parameters."""

    name: str
    description: str
    parameters: dict[str, JSON]
    arguments: type[msgspec.Struct]
    takes: frozenset[str]

    @property
    def schema(self) -> dict[str, JSON]:
        """The chat completion schema."""
        return make_tool_schema(self.name, self.description, self.parameters)


def make_tool_schema(name: str, description: str, parameters: dict[str, JSON]) -> dict[str, JSON]:
    """Return the chat completion schema of a tool."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def is_tool_name(name: str) -> bool:
    """Whether servers accept this as a tool's name."""
    return _TOOL_NAME.fullmatch(name) is not None


def tool_methods(cls: type) -> dict[str, Callable[..., object]]:
    """Return the tool methods of a class by name, inherited ones included, in the order of their definition."""
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    attributes = {name: inspect.getattr_static(cls, name) for name in names}
    functions = {name: getattr(value, "__func__", value) for name, value in attributes.items()}
    return {name: function for name, function in functions.items() if getattr(function, TOOL_MARK, False)}


def tool_schemas(cls: type) -> list[dict[str, JSON]]:
    """Return the chat completion schemas of the tools of an environment class."""
    return [tool.schema for tool in read_tools(cls)]


def read_tools(cls: type) -> list[Tool]:
    """Return the tools of an environment class; an invalid one is a UsageError that names it."""
    return [_read_tool(cls, name, method) for name, method in tool_methods(cls).items()]


def _read_tool(cls: type, name: str, method: Callable[..., object]) -> Tool:
    where = f"tool {cls.__name__}.{name}"
    if not is_tool_name(name):
        raise UsageError(f"{where}: models take names of up to 64 ASCII letters, digits, - and _; rename it")
    summary, descriptions = read_docstring(inspect.getdoc(method) or "")
    fields = [_struct_field(where, p, hint) for p, hint in _visible_parameters(where, method)]
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    parameters = _parameter_schema(where, arguments)
    for argument, text in descriptions.items():
        if argument in parameters["properties"]:
            parameters["properties"][argument]["description"] = text
    return Tool(name, summary, parameters, arguments, frozenset(inspect.signature(method).parameters))


def _parameter_schema(where: str, model: type[msgspec.Struct]) -> dict[str, JSON]:
    try:
        _, others = msgspec.json.schema_components([model], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise UsageError(f"{where}: {str(error).splitlines()[0]}; use types that JSON can hold") from None
    schema: dict[str, JSON] = others.pop(model.__name__)
    schema.pop("title", None)
    schema.setdefault("required", [])
    return {**schema, **({"$defs": others} if others else {}), "additionalProperties": False}


def _visible_parameters(where: str, method: Callable[..., object]) -> list[tuple[inspect.Parameter, object]]:
    hints = _type_hints(where, method)
    visible = []
    for position, parameter in enumerate(inspect.signature(method).parameters.values()):
        if (position == 0 and parameter.name in ("self", "cls")) or parameter.name in INJECTED:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"{where}: parameter {parameter} cannot be given by name; write ordinary parameters")
        if parameter.name not in hints:
            raise UsageError(f"{where}: parameter {parameter.name!r} has no type; annotate it")
        visible.append((parameter, hints[parameter.name]))
    return visible


def _type_hints(where: str, method: Callable[..., object]) -> Mapping[str, object]:
    try:
        return get_type_hints(method, include_extras=True)
    except NameError as error:
        raise UsageError(f"{where}: {error}; annotations must name types of its own module") from None


def _struct_field(where: str, parameter: inspect.Parameter, hint: object) -> tuple[str, JSON] | tuple[str, JSON, JSON]:
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
    """Read a Google-style docstring: the text before its sections, and the description of each argument.

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
    return "\n".join(sections[""]).strip(), _parse_argument_section(sections.get("Args", []))


def _parse_argument_section(lines: list[str]) -> dict[str, str]:
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


TOOL_FORM = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {"type": "object", ...}}}'

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def read_offered_tools(offered: object, own: Mapping[str, str], origin: str = "offers(task)") -> dict[str, JSON]:
    """Return offered tools by name; an invalid schema or a name that is already taken is an environment_error.

    `own` has the tools that exist already, each with its origin; `origin` is that of the offered ones.
    """
    try:
        return _check_offered(offered, own)
    except ValueError as error:
        raise RolloutFailed("environment_error", "offers", f"{origin} {error}") from None


def _check_offered(offered: object, own: Mapping[str, str]) -> dict[str, JSON]:
    if not isinstance(offered, list | tuple):
        raise ValueError(f"returned a {type(offered).__name__}; it must be a list of {TOOL_FORM}")
    schemas: dict[str, JSON] = {}
    for schema in map(_complete_schema, offered):
        name = schema["function"]["name"]
        if name in own or name in schemas:
            raise ValueError(f"names {name!r}, and so does {own.get(name, 'it once more')}: rename one")
        schemas[name] = schema
    return schemas


def _complete_schema(schema: object) -> dict[str, JSON]:
    """Return a schema with every field that agents read."""
    function = schema.get("function") if isinstance(schema, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"returned {str(schema)[:200]!r}; each must be {TOOL_FORM}")
    if not is_tool_name(function["name"]):
        raise ValueError(f"names {function['name'][:200]!r}; models take up to 64 ASCII letters, digits, - and _")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise ValueError(f"gives {function['name']} parameters that are not the schema of an object; write {TOOL_FORM}")
    complete = {**function, "description": str(function.get("description") or ""), "parameters": parameters}
    return {"type": "function", "function": complete}


def find_argument_error(parameters: dict[str, JSON], arguments: dict[str, JSON]) -> str | None:
    """Return why arguments do not fit their schema, or None: only names and JSON types; `use` checks nested values.

    >>> find_argument_error({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"a": "1"})
    'Expected `integer`, got `string` - at `$.a`'
    """
    known = parameters.get("properties", {})
    for name in parameters.get("required", []):
        if name not in arguments:
            return f"Object missing required field `{name}`"
    for name, value in arguments.items():
        if name not in known and parameters.get("additionalProperties") is False:
            return f"Object contains unknown field `{name}`"
        if wrong := _find_type_error(known.get(name), value):
            return f"{wrong} - at `$.{name}`"
    return None


def _find_type_error(schema: JSON, value: JSON) -> str | None:
    expected = schema.get("type") if isinstance(schema, dict) else None
    kinds = [expected] if isinstance(expected, str) else expected
    if not kinds or any(_has_json_type(value, kind) for kind in kinds):
        return None
    return f"Expected `{'` or `'.join(map(str, kinds))}`, got `{_JSON_TYPES.get(type(value), 'null')}`"


def _has_json_type(value: JSON, kind: str) -> bool:
    if kind == "integer":
        return type(value) is int or (type(value) is float and value.is_integer())
    return _JSON_TYPES.get(type(value), "null") == kind or (kind == "number" and type(value) is int)


ENVIRONMENT_FAULTS = (ConnectionError, TimeoutError, MemoryError, RollbookError)
"""Exceptions of a tool that are failures of the environment, not bad arguments."""


class ToolMisuse(Exception):
    """A mistake of the model in a tool call; the message is shown to the model."""


class Toolbox:
    """Executes tool calls of a model: `text` is the arguments as the model wrote them."""

    def __init__(self, environment: object, max_chars: int) -> None:
        self._environment, self._max_chars = environment, max_chars
        self._tools = {tool.name: tool for tool in read_tools(type(environment))}

    def use(self, name: str, text: str, state: object, container: object = None) -> str:
        """Call a sync tool, and return its result as text for the model."""
        try:
            value = self._bind_call(name, text, state, container)()
        except Exception as error:  # noqa: BLE001 - what a tool raises on bad arguments is an answer to the model
            return self._error_text(error)
        return self._result_text(name, value)

    async def use_async(self, name: str, text: str, state: object, container: object = None) -> str:
        """Call an async tool, and return its result as text for the model."""
        try:
            value = await self._bind_call(name, text, state, container)()
        except Exception as error:  # noqa: BLE001 - likewise
            return self._error_text(error)
        return self._result_text(name, value)

    async def use_offered(self, offer: JSON, text: str, use: Callable[[dict[str, JSON]], Awaitable[JSON]]) -> str:
        """Call a tool that was offered for one task; `use` executes it."""
        name = offer["function"]["name"]
        try:
            arguments = read_arguments(text, f"the arguments of {name}")
            if wrong := find_argument_error(offer["function"]["parameters"], arguments):
                raise ToolMisuse(f"the arguments of {name} do not fit: {wrong}")
            value = await use(arguments)
        except Exception as error:  # noqa: BLE001 - likewise
            return self._error_text(error)
        return self._result_text(name, value)

    def _bind_call(self, name: str, text: str, state: object, container: object = None) -> Callable[[], JSON]:
        tool = self._tools[name]
        arguments = bind_arguments(tool, text)
        given = {"container": container, "state": state}
        injected = {each: given[each] for each in INJECTED & tool.takes}
        return partial(getattr(self._environment, name), **arguments, **injected)

    def _error_text(self, error: Exception) -> str:
        if isinstance(error, ENVIRONMENT_FAULTS):
            raise error
        message = str(error) if isinstance(error, ToolMisuse) else f"{type(error).__name__}: {error}"
        return truncate(replace_lone_surrogates(f"Error: {message}"), self._max_chars)

    def _result_text(self, name: str, value: JSON) -> str:
        try:
            text = value if isinstance(value, str) else encode(value).decode()
        except (TypeError, RecursionError) as error:
            raise RolloutFailed("environment_error", f"tool {name}", f"it did not return JSON: {error}") from None
        except (ValueError, OverflowError) as error:  # a number of 5,000 digits: the tool did what the model asked
            text = f"Error: the result cannot be shown: {error}"
        return truncate(replace_lone_surrogates(text), self._max_chars)


def bind_arguments(tool: Tool, text: str) -> dict[str, JSON]:
    """Return the arguments of a call by name, in the types of the tool; ToolMisuse says what is wrong with them."""
    arguments = read_arguments(text, f"the arguments of {tool.name}")
    try:
        converted = msgspec.convert(arguments, tool.arguments)
    except msgspec.ValidationError as error:
        raise ToolMisuse(f"the arguments of {tool.name} do not fit: {error}") from None
    return {name: getattr(converted, name) for name in arguments}


def read_arguments(text: str, what: str) -> dict[str, JSON]:
    """Read a JSON object as a model writes it; empty text is an empty object. ToolMisuse says where it is broken."""
    try:
        value = json.loads(text, parse_constant=refuse_constant) if text.strip() else {}
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise ToolMisuse(f"{what} are not valid JSON at {place}: {error.msg}; write a JSON object") from None
    except (RecursionError, ValueError) as error:
        raise ToolMisuse(f"{what} cannot be read: {error}; write a JSON object") from None
    if not isinstance(value, dict):
        raise ToolMisuse(f"{what} are not a JSON object but {_json_type_name(value)}; write a JSON object")
    return {replace_lone_surrogates(k): _replace_in_values(v) for k, v in value.items()} if "\\u" in text else value


def truncate(text: str, max_chars: int) -> str:
    """Return the first characters of a text, and a remark on how many were left out.

    >>> truncate("0123456789", 4)
    '0123\\n[cut here: 6 of 10 characters left out]'
    """
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[cut here: {len(text) - max_chars} of {len(text)} characters left out]"


def replace_lone_surrogates(text: str) -> str:
    """Replace halves of characters, which no file and no server accepts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _replace_in_values(value: JSON) -> JSON:
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if isinstance(value, list):
        return [_replace_in_values(item) for item in value]
    if isinstance(value, dict):
        return {replace_lone_surrogates(k): _replace_in_values(v) for k, v in value.items()}
    return value


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which `json` reads though they are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _json_type_name(value: JSON) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
