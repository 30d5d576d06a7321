"""A JSON schema that a user brings: whether it is one, whether it can be worked through, and what fits it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

from rollbook.core.json import JSON
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from referencing import Resource
    from referencing._core import Resolver

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef")
_WRAPPER = {"type", "name", "description", "strict", "schema", "json_schema"}


def unwrapped(value: JSON) -> JSON:
    """A schema without the name and settings that a `response_format` has around it.

    >>> unwrapped({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}})
    {'type': 'integer'}
    """
    while isinstance(value, dict) and set(value) <= _WRAPPER and value.get("type", "json_schema") == "json_schema":
        inner = value.get("json_schema", value.get("schema"))
        if not isinstance(inner, dict):
            break
        value = inner
    return value


def validator(schema: JSON) -> JSON:
    """What finds the errors of a value; what a schema refers to is never fetched."""
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError(f"json_schema needs a package ({error}); pip install 'rollbook[schema]'") from None
    return _exact(validator_for(schema, default=Draft202012Validator))(schema, registry=REGISTRY)


@cache
def _exact(kind: JSON) -> JSON:
    """A kind of validator that takes numbers as they are written: 19.99 is a multiple of 0.01."""
    from jsonschema.validators import extend

    return extend(kind, {"multipleOf": _multiple})


def _multiple(checker: JSON, divisor: JSON, value: JSON, schema: JSON) -> Iterator[Exception]:
    from jsonschema import ValidationError

    if checker.is_type(value, "number") and (Fraction(str(value)) / Fraction(str(divisor))).denominator != 1:
        yield ValidationError(f"{value!r} is not a multiple of {divisor}")


def checked(schema: JSON, where: str) -> JSON:
    """The same for a schema that was not used before; one that would fail with every value is a UsageError."""
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing import Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    found = validator(schema)
    try:
        found.check_schema(schema)
        resource = Resource.from_contents(schema, specification_with(found.META_SCHEMA["$schema"]))
        _check(resource, REGISTRY.resolver_with_root(resource))
    except SchemaError as error:
        raise UsageError(f"{where}: not a JSON schema: {error.message}") from None
    except Unresolvable as error:
        missing = error.ref or f"#{getattr(error, 'anchor', '')}"
        raise UsageError(f"{where}: the schema refers to {missing!r}, which is not in it") from None
    except RecursionError:
        raise UsageError(f"{where}: the schema refers to itself without end, or is nested too deeply") from None
    return found


def _check(resource: Resource[JSON], resolver: Resolver[JSON]) -> None:
    """Look up every reference, here and further in."""
    if isinstance(resource.contents, dict):
        _follow(resource.contents, resolver, frozenset())
    for inner in resource.subresources():
        _check(inner, resolver.in_subresource(inner))


def _follow(schema: JSON, resolver: Resolver[JSON], above: frozenset[int]) -> None:
    """Go through all that applies to the same value as this schema; a RecursionError if that comes back to itself."""
    if not isinstance(schema, dict):
        return
    if id(schema) in above:
        raise RecursionError
    above |= {id(schema)}
    for reference in (schema[name] for name in _REFERENCES if isinstance(schema.get(name), str)):
        target = resolver.lookup(reference)
        _follow(target.contents, target.resolver, above)
    for inner in (*(schema.get(name) for name in _SINGLES), *(one for name in _LISTS for one in schema.get(name, ()))):
        _follow(inner, resolver, above)
