"""Structured output: rows with a JSON schema that the answer must fit.

Each schema is checked first: whether it is valid, whether its references resolve, whether they end.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from rollbook.core import JSON, Rollout, Score, Task, encode
from rollbook.environments.answers.extraction import strip_thinking
from rollbook.environments.data_rows import ANSWER_FIELDS, DataRow, PromptTemplate, decode_text, read_tasks
from rollbook.environments.environment import Environment
from rollbook.environments.tools import refuse_constant
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from referencing import Resource
    from referencing._core import Resolver

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef")
_WRAPPER = {"type", "name", "description", "strict", "schema", "json_schema"}


def unwrap_schema(value: JSON) -> JSON:
    """Return the schema inside a `response_format`, without its name and settings.

    >>> unwrap_schema({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}})
    {'type': 'integer'}
    """
    while isinstance(value, dict) and set(value) <= _WRAPPER and value.get("type", "json_schema") == "json_schema":
        inner = value.get("json_schema", value.get("schema"))
        if not isinstance(inner, dict):
            break
        value = inner
    return value


def make_validator(schema: JSON) -> JSON:
    """Return a validator for a schema; remote references are never fetched."""
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError(f"json_schema needs a package ({error}); pip install 'rollbook[schema]'") from None
    return _exact_validator(validator_for(schema, default=Draft202012Validator))(schema, registry=REGISTRY)


@cache
def _exact_validator(cls: JSON) -> JSON:
    """Return a validator class that computes with decimal numbers as written: 19.99 is a multiple of 0.01."""
    from jsonschema.validators import extend

    return extend(cls, {"multipleOf": _check_multiple_of})


def _check_multiple_of(checker: JSON, divisor: JSON, value: JSON, schema: JSON) -> Iterator[Exception]:
    from jsonschema import ValidationError

    if checker.is_type(value, "number") and (Fraction(str(value)) / Fraction(str(divisor))).denominator != 1:
        yield ValidationError(f"{value!r} is not a multiple of {divisor}")


def check_schema(schema: JSON, where: str) -> JSON:
    """Return a validator for a schema from a row; a schema that would fail with every value is a UsageError."""
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing import Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    validator = make_validator(schema)
    try:
        validator.check_schema(schema)
        resource = Resource.from_contents(schema, specification_with(validator.META_SCHEMA["$schema"]))
        _check_references(resource, REGISTRY.resolver_with_root(resource))
    except SchemaError as error:
        raise UsageError(f"{where}: not a JSON schema: {error.message}") from None
    except Unresolvable as error:
        missing = error.ref or f"#{getattr(error, 'anchor', '')}"
        raise UsageError(f"{where}: the schema refers to {missing!r}, which is not in it") from None
    except RecursionError:
        raise UsageError(f"{where}: the schema refers to itself without end, or is nested too deeply") from None
    return validator


def _check_references(resource: Resource[JSON], resolver: Resolver[JSON]) -> None:
    """Look up every reference of a schema and its subschemas."""
    if isinstance(resource.contents, dict):
        _follow_references(resource.contents, resolver, frozenset())
    for inner in resource.subresources():
        _check_references(inner, resolver.in_subresource(inner))


def _follow_references(schema: JSON, resolver: Resolver[JSON], above: frozenset[int]) -> None:
    """Visit all schemas that apply to the same value as this one; raise RecursionError if they form a cycle."""
    if not isinstance(schema, dict):
        return
    if id(schema) in above:
        raise RecursionError
    above |= {id(schema)}
    for reference in (schema[name] for name in _REFERENCES if isinstance(schema.get(name), str)):
        target = resolver.lookup(reference)
        _follow_references(target.contents, target.resolver, above)
    for inner in (*(schema.get(name) for name in _SINGLES), *(one for name in _LISTS for one in schema.get(name, ()))):
        _follow_references(inner, resolver, above)


INSTRUCTION = "Answer with one JSON value that fits this JSON schema, and nothing else:\n{schema}"
SCHEMA_FIELDS = ("schema", "json_schema")

_OPENS = re.compile(r"```([A-Za-z][\w+-]*)?[ \t]*(?:\n|(?=[\[{\"\d-]))")
_CLOSES = re.compile(r"^[ \t]*```|```[ \t.]*$", re.MULTILINE)
"""At the beginning or end of a line: elsewhere it may be part of a JSON string."""

MAX_DEPTH = 100
"""The deepest nesting that is read: a validator recurses, and its result must not depend on the stack size."""
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep, or too deeply for its schema"


class JSONSchema(Environment):
    """Requests from `data`, each with a `schema`; where a row has an `answer`, the value must equal it as well."""

    kind = "rows"
    description = (
        "structured output from your own rows (--data): JSON that fits a schema (pip install rollbook[schema])"
    )
    row_fields: ClassVar = {
        "prompt": "the request; also called question, problem or messages",
        "schema": "the JSON Schema that the answer must fit",
        "answer": "optional: the value that the answer must equal",
    }
    example_row: ClassVar = {
        "prompt": "Who wrote Faust?",
        "schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    }

    def __init__(self, data: str, template: str | None = None) -> None:
        self._data, self._template = data, template
        make_validator({})

    def tasks(self) -> Iterator[Task]:
        """Yield the requests in the order of their rows; an invalid schema is an error that names its row."""
        return read_tasks(self._data, self._template, _make_task)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if the answer is JSON that fits and equals the expected value, if any; `parts` has each result."""
        try:
            value = read_json(rollout.text)
        except ValueError as unreadable:
            return Score(0.0, {"json": 0.0, "fits": 0.0}, None, {"error": str(unreadable)[:500]})
        error = _find_schema_error(value, task.fields["schema"])
        has_answer = _has_answer(task)
        fits, equal = error is None, not has_answer or _json_equal(value, task.answer)
        parts = {"json": 1.0, "fits": float(fits)} | ({"equal": float(equal)} if has_answer else {})
        info = {} if error is None else {"error": error[:500]}
        return Score(float(fits and equal), parts, encode(value).decode()[:500], info)

    def solution(self, task: Task) -> str | None:
        """Return the expected value, or the row's example; None where only the schema is known."""
        value = task.answer if _has_answer(task) else task.fields.get("example")
        return encode(value).decode() if _has_answer(task) or value is not None else None


def _make_task(row: DataRow, template: PromptTemplate | None) -> Task:
    schema = _read_schema(row)
    task = row.task(INSTRUCTION.format(schema=encode(schema).decode()), template)
    task.answer = _read_expected(row, task.answer, schema)
    task.fields = {k: v for k, v in task.fields.items() if k not in SCHEMA_FIELDS} | {"schema": schema}
    if task.answer is None and _wants_null(row, schema):
        task.fields["must_be_null"] = True
    return task


def read_json(text: str) -> JSON:
    """Read the JSON value of an answer, in a fence or bare; a ValueError says what is wrong with it.

    >>> read_json('```json\\n{"a": 1}\\n```'), read_json("[1, 2]")
    ({'a': 1}, [1, 2])
    """
    text = strip_thinking(text).strip()
    fenced = _find_fenced_json(text)
    try:
        value = json.loads(
            text if fenced is None else fenced,
            parse_constant=refuse_constant,
            parse_float=_parse_finite,
            parse_int=_parse_integer,
        )
        check_bounds(value)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return value


def _find_fenced_json(text: str) -> str | None:
    """Return the content of the last fence that is tagged as JSON or not tagged."""
    content, at = None, 0
    while opened := _OPENS.search(text, at):
        closed = _CLOSES.search(text, opened.end())
        if closed is None:
            break
        if (opened[1] or "json").lower() == "json":
            content = text[opened.end() : closed.start()]
        at = closed.end()
    return content


def _parse_finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else refuse_constant(f"{digits[:40]} is too large a number; it")


def _parse_integer(digits: str) -> int:
    """Parse an integer that fits a float: a validator divides with floats."""
    _parse_finite(digits)
    return int(digits)


def check_bounds(value: JSON) -> None:
    """Raise ValueError for a value that is nested too deeply, or that no file can store."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _children(outer)]
    if level:
        raise ValueError(TOO_DEEP)
    try:
        encode(value)
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate such as \\ud800)") from None


def _children(value: JSON) -> Iterable[JSON]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _find_schema_error(value: JSON, schema: JSON) -> str | None:
    """Return why a value does not fit. Endless schemas were refused with their rows: only the value can be too deep."""
    try:
        error = next(iter(make_validator(schema).iter_errors(value)), None)
    except RecursionError:
        return TOO_DEEP
    return None if error is None else f"{error.json_path}: {error.message}"


def _json_equal(value: JSON, expected: JSON) -> bool:
    """Whether two JSON values are equal: true is not 1, and 1.0 is 1."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_json_equal, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_json_equal(value[key], expected[key]) for key in value)
    return bool(value == expected)


def _read_schema(row: DataRow) -> JSON:
    name = row.first(*SCHEMA_FIELDS)
    schema = unwrap_schema(row.decode_field(name))
    if not isinstance(schema, dict):
        raise UsageError(f"{row.where}: no {' / '.join(SCHEMA_FIELDS)} that is an object; it has: {row.field_names}")
    check_schema(schema, row.where)
    return schema


def _wants_null(row: DataRow, schema: JSON) -> bool:
    """Whether a row's `null` is its answer; where null does not fit the schema, it is an empty field."""
    return any(name in row.values for name in ANSWER_FIELDS) and _find_schema_error(None, schema) is None


def _has_answer(task: Task) -> bool:
    return task.answer is not None or bool(task.fields.get("must_be_null"))


def _read_expected(row: DataRow, answer: JSON, schema: JSON) -> JSON:
    """Return the answer of a row unchanged if it fits, else decoded from JSON text."""
    expected = answer if _find_schema_error(answer, schema) is None else decode_text(answer)
    if expected is None:
        return None
    try:
        check_bounds(expected)
    except ValueError as error:
        raise UsageError(f"{row.where}: its own answer cannot be used: {error}") from None
    if _find_schema_error(expected, schema) is not None:
        raise UsageError(f"{row.where}: its own answer does not fit its schema")
    return expected
