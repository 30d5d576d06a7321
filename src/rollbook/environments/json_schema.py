"""Structured output: rows with a JSON schema that the answer has to fit."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import NoReturn

from rollbook.core.json import JSON, encode
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.environments.rows import ANSWERS, Row, rows, unfolded
from rollbook.environments.schema import checked, unwrapped, validator
from rollbook.environments.template import Template
from rollbook.errors import UsageError

INSTRUCTION = "Answer with one JSON value that fits this JSON schema, and nothing else:\n{schema}"
SCHEMAS = ("schema", "json_schema")

_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_OPENS = re.compile(r"```([A-Za-z][\w+-]*)?[ \t]*(?:\n|(?=[\[{\"\d-]))")
_CLOSES = re.compile(r"^[ \t]*```|```[ \t.]*$", re.MULTILINE)
"""At the beginning or end of a line: elsewhere it may stand in a string of the JSON."""

DEPTH = 100
"""The deepest nesting that is read: a validator goes down by recursion, and must never depend on the stack it has."""
TOO_DEEP = f"it is nested more than {DEPTH} deep, or too deeply for its schema"


class JSONSchema(Environment):
    """Requests from `data`, each with a `schema`; where a row has an `answer`, the value must equal it as well."""

    description = (
        "structured output from your own rows (--data): JSON that fits a schema (pip install rollbook[schema])"
    )

    def __init__(self, data: str, template: str | None = None) -> None:
        self._data, self._template = data, template
        validator({})

    def tasks(self) -> Iterator[Task]:
        """The requests in the order of their rows; a schema that is none is named by its row."""
        template = Template.read(self._template) if self._template else None
        for row in rows(self._data):
            schema = _schema(row)
            shown = INSTRUCTION.format(schema=encode(schema).decode())
            task = row.task(shown, template)
            task.answer = _expected(row, task.answer, schema)
            task.fields = {k: v for k, v in task.fields.items() if k not in SCHEMAS} | {"schema": schema}
            if task.answer is None and _wants_null(row, schema):
                task.fields["must_be_null"] = True
            yield task

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """1 if the answer is JSON that fits, and equals the expected value if there is one; `parts` tell them apart."""
        try:
            value = read_json(rollout.text)
        except ValueError as unreadable:
            return Score(0.0, {"json": 0.0, "fits": 0.0}, None, {"error": str(unreadable)[:500]})
        error = _misfit(value, task.fields["schema"])
        known = _known(task)
        fits, equal = error is None, not known or _same(value, task.answer)
        parts = {"json": 1.0, "fits": float(fits)} | ({"equal": float(equal)} if known else {})
        info = {} if error is None else {"error": error[:500]}
        return Score(float(fits and equal), parts, encode(value).decode()[:500], info)

    def solution(self, task: Task) -> str | None:
        """The expected value, or the row's example; None where only the schema is known."""
        value = task.answer if _known(task) else task.fields.get("example")
        return encode(value).decode() if _known(task) or value is not None else None


def read_json(text: str) -> JSON:
    """The one JSON value of an answer, in a fence or bare; a ValueError says what is wrong with it.

    >>> read_json('```json\\n{"a": 1}\\n```'), read_json("[1, 2]")
    ({'a': 1}, [1, 2])
    """
    text = _THOUGHT.sub("", text).strip()
    fenced = _fenced(text)
    try:
        written = text if fenced is None else fenced
        value = json.loads(written, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
        check_bounds(value)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return value


def _fenced(text: str) -> str | None:
    """What the last fence holds that is tagged as JSON, or not tagged."""
    found, at = None, 0
    while opened := _OPENS.search(text, at):
        closed = _CLOSES.search(text, opened.end())
        if closed is None:
            break
        if (opened[1] or "json").lower() == "json":
            found = text[opened.end() : closed.start()]
        at = closed.end()
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(f"{digits[:40]} is too large a number; it")


def _whole(digits: str) -> int:
    """A validator divides by way of floats: an integer must be within their bounds."""
    _finite(digits)
    return int(digits)


def check_bounds(value: JSON) -> None:
    """A ValueError for a value that is nested too deeply, or that no file can hold."""
    level = [value]
    for _ in range(DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise ValueError(TOO_DEEP)
    try:
        encode(value)
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate such as \\ud800)") from None


def _inside(value: JSON) -> Iterable[JSON]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _misfit(value: JSON, schema: JSON) -> str | None:
    """Why a value does not fit. Schemas without end were refused with their rows: too deep is what the value is."""
    try:
        error = next(iter(validator(schema).iter_errors(value)), None)
    except RecursionError:
        return TOO_DEEP
    return None if error is None else f"{error.json_path}: {error.message}"


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
    schema = unwrapped(row.decoded(name))
    if not isinstance(schema, dict):
        raise UsageError(f"{row.where}: no {' / '.join(SCHEMAS)} that is an object; it has: {row.has}")
    checked(schema, row.where)
    return schema


def _wants_null(row: Row, schema: JSON) -> bool:
    """Whether a row's `null` is its answer; where that does not fit, it is a field left empty."""
    return any(name in row.values for name in ANSWERS) and _misfit(None, schema) is None


def _known(task: Task) -> bool:
    return task.answer is not None or bool(task.fields.get("must_be_null"))


def _expected(row: Row, answer: JSON, schema: JSON) -> JSON:
    """The answer of a row as it stands if that fits, else the value of which it is the text."""
    meant = answer if _misfit(answer, schema) is None else unfolded(answer)
    if meant is None:
        return None
    try:
        check_bounds(meant)
    except ValueError as error:
        raise UsageError(f"{row.where}: its own answer cannot be used: {error}") from None
    if _misfit(meant, schema) is not None:
        raise UsageError(f"{row.where}: its own answer does not fit its schema")
    return meant
