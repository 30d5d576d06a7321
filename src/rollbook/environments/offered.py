"""Tools that an environment offers for one task, beyond its `@tool` methods: read from it, and kept to by calls."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.core.json import JSON
from rollbook.environments.tool import is_name
from rollbook.errors import RolloutFailed

FORM = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {"type": "object", ...}}}'

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def read_offers(given: object, own: Mapping[str, str], who: str = "offers(task)") -> dict[str, JSON]:
    """What `who` offers, by name; what no model could be shown, or told from its `own` tools, is a mistake of theirs.

    `own` says of each tool that there is already where it comes from.
    """
    try:
        return _read(given, own)
    except ValueError as error:
        raise RolloutFailed("environment_error", "offers", f"{who} {error}") from None


def _read(given: object, own: Mapping[str, str]) -> dict[str, JSON]:
    if not isinstance(given, list | tuple):
        raise ValueError(f"returned a {type(given).__name__}; it must be a list of {FORM}")
    found: dict[str, JSON] = {}
    for schema in map(_whole, given):
        name = schema["function"]["name"]
        if name in own or name in found:
            raise ValueError(f"names {name!r}, and so does {own.get(name, 'it once more')}: rename one")
        found[name] = schema
    return found


def _whole(given: object) -> dict[str, JSON]:
    """A schema with everything that agents look for."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"returned {str(given)[:200]!r}; each must be {FORM}")
    if not is_name(function["name"]):
        raise ValueError(f"names {function['name'][:200]!r}; models take up to 64 ASCII letters, digits, - and _")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise ValueError(f"gives {function['name']} parameters that are no schema of an object; write {FORM}")
    whole = {**function, "description": str(function.get("description") or ""), "parameters": parameters}
    return {"type": "function", "function": whole}


def misfit(parameters: dict[str, JSON], given: dict[str, JSON]) -> str | None:
    """What is wrong with arguments by their schema: a name, or the JSON type of a value. What is within, `use` checks.

    >>> misfit({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"a": "1"})
    'Expected `integer`, got `string` - at `$.a`'
    """
    known = parameters.get("properties", {})
    for name in parameters.get("required", []):
        if name not in given:
            return f"Object missing required field `{name}`"
    for name, value in given.items():
        if name not in known and parameters.get("additionalProperties") is False:
            return f"Object contains unknown field `{name}`"
        if wrong := _mistyped(known.get(name), value):
            return f"{wrong} - at `$.{name}`"
    return None


def _mistyped(schema: JSON, value: JSON) -> str | None:
    wanted = schema.get("type") if isinstance(schema, dict) else None
    kinds = [wanted] if isinstance(wanted, str) else wanted
    if not kinds or any(_is(value, kind) for kind in kinds):
        return None
    return f"Expected `{'` or `'.join(map(str, kinds))}`, got `{_KINDS.get(type(value), 'null')}`"


def _is(value: JSON, kind: str) -> bool:
    if kind == "integer":
        return type(value) is int or (type(value) is float and value.is_integer())
    return _KINDS.get(type(value), "null") == kind or (kind == "number" and type(value) is int)
