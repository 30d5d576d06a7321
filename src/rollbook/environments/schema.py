"""A JSON schema that a user brings: whether it is one, whether it can be worked through, and what fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbook.core.json import JSON
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from referencing import Resource
    from referencing._core import Resolver

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")


def validator(schema: JSON) -> JSON:
    """What finds the errors of a value; what a schema refers to is never fetched."""
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError(f"json_schema needs a package ({error}); pip install 'rollbook[schema]'") from None
    return validator_for(schema, default=Draft202012Validator)(schema, registry=REGISTRY)


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
        raise UsageError(f"{where}: the schema refers to {error.ref!r}, which is not in it") from None
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
    if isinstance(schema.get("$ref"), str):
        target = resolver.lookup(schema["$ref"])
        _follow(target.contents, target.resolver, above)
    for inner in (*(schema.get(name) for name in _SINGLES), *(one for name in _LISTS for one in schema.get(name, ()))):
        _follow(inner, resolver, above)
