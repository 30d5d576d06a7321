"""Structured output: rows with a JSON schema that the answer has to fit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NoReturn

from rollbook.core.json import JSON, encode
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.environments.rows import Row, rows, unfolded
from rollbook.environments.template import Template
from rollbook.errors import UsageError

INSTRUCTION = "Answer with one JSON value that fits this JSON schema, and nothing else:\n{schema}"
SCHEMAS = ("schema", "json_schema")

_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)


class JSONSchema(Environment):
    """Requests from `data`, each with a `schema`; where a row has an `answer`, the value must equal it as well."""

    description = (
        "structured output from your own rows (--data): JSON that fits a schema (pip install rollbook[schema])"
    )

    def __init__(self, data: str, template: str | None = None) -> None:
        self._data, self._template = data, template
        _validator({}, "json_schema")

    def tasks(self) -> Iterator[Task]:
        """The requests in the order of their rows; a schema that is none is named by its row."""
        template = Template.read(self._template) if self._template else None
        for row in rows(self._data):
            schema = _schema(row)
            shown = INSTRUCTION.format(schema=encode(schema).decode())
            task = row.task(shown, template)
            task.answer = _expected(row, task.answer, schema)
            task.fields = {k: v for k, v in task.fields.items() if k not in SCHEMAS} | {"schema": schema}
            yield task

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """1 if the answer is JSON that fits, and equals the expected value if there is one; `parts` tell them apart."""
        try:
            value = read_json(rollout.text)
        except ValueError as unreadable:
            return Score(0.0, {"json": 0.0, "fits": 0.0}, None, {"error": str(unreadable)[:500]})
        error = next(iter(_validator(task.fields["schema"], task.id).iter_errors(value)), None)
        fits, equal = error is None, task.answer is None or _same(value, task.answer)
        parts = {"json": 1.0, "fits": float(fits)} | ({} if task.answer is None else {"equal": float(equal)})
        info = {"error": f"{error.json_path}: {error.message}"[:500]} if error else {}
        return Score(float(fits and equal), parts, encode(value).decode()[:500], info)

    def solution(self, task: Task) -> str | None:
        """The expected value, or the row's example; None where only the schema is known."""
        known = task.answer if task.answer is not None else task.fields.get("example")
        return None if known is None else encode(known).decode()


def read_json(text: str) -> JSON:
    """The one JSON value of an answer, in a fence or bare; a ValueError says what is wrong with it.

    >>> read_json('```json\\n{"a": 1}\\n```'), read_json("[1, 2]")
    ({'a': 1}, [1, 2])
    """
    text = _THOUGHT.sub("", text).strip()
    fenced = _FENCE.findall(text)
    try:
        return json.loads(fenced[-1] if fenced else text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _same(value: JSON, expected: JSON) -> bool:
    """Equality of JSON: true is not 1, and 1.0 is 1."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_same(value[key], expected[key]) for key in value)
    return bool(value == expected)


def _schema(row: Row) -> JSON:
    name = row.first(*SCHEMAS)
    schema = row.decoded(name)
    if not isinstance(schema, dict):
        raise UsageError(f"{row.where}: no {' / '.join(SCHEMAS)} that is an object; it has: {row.has}")
    _validator(schema, row.where)
    return schema


def _expected(row: Row, answer: JSON, schema: JSON) -> JSON:
    answer = unfolded(answer)
    if answer is not None and not _validator(schema, row.where).is_valid(answer):
        raise UsageError(f"{row.where}: its own answer does not fit its schema")
    return answer


def _validator(schema: JSON, where: str) -> JSON:
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
    except ImportError as error:
        raise UsageError(f"json_schema needs a package ({error}); pip install 'rollbook[schema]'") from None
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise UsageError(f"{where}: not a JSON schema: {error.message}") from None
    return kind(schema)
