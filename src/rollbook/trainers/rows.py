"""A trainer's rows as tasks. Each environment reads its own, as it does from the file of `--data`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.collect.blend import Entry
from rollbook.core.json import JSON, decode, to_line
from rollbook.core.task import Task, TaskLine
from rollbook.environments.environment import Environment, parameters_of
from rollbook.environments.registry import resolve
from rollbook.errors import UsageError

AGENT, GYM = "agent_ref", "responses_create_params"
_LINE = {"id", "env", "messages"}
"""What only a line of tasks.jsonl has all of."""


def agent_of(row: Mapping[str, JSON]) -> str | None:
    """Who is to play a row: NeMo Gym's `agent_ref`, or the environment that a line of tasks.jsonl is of."""
    given = row.get(AGENT)
    name = given.get("name") if isinstance(given, dict) else given
    return str(name) if name else (str(row["env"]) if row.keys() >= _LINE else None)


def shown(row: Mapping[str, JSON]) -> list[JSON]:
    """What a row shows the model, every item as it stands there."""
    params = row.get(GYM)
    given = params.get("input") if isinstance(params, dict) else row.get("messages", row.get("prompt"))
    return given if isinstance(given, list) else [{"role": "user", "content": given or ""}]


def environment_of(entry: Entry, data: str | None = None) -> Environment:
    """The environment of an entry, with other rows than its own where they are given."""
    return resolve(entry.env, data or entry.data, entry.template).instance


def tasks_of(entry: Entry, rows: Sequence[JSON], places: Sequence[int] | None = None) -> list[Task]:
    """One task for every row, in their order; UsageError names what cannot be read, by its place among all rows."""
    if all(isinstance(row, dict) and row.keys() >= _LINE for row in rows):
        return [_task(row) for row in rows]
    if "data" not in parameters_of(type(environment_of(entry))):
        way = f"rows for it are lines of tasks.jsonl: rollbook plan {entry.env} -o RUN writes them"
        raise UsageError(f"{entry.env} reads no rows of others; {way}")
    with tempfile.TemporaryDirectory(prefix="rollbook-rows-") as folder:
        path = Path(folder) / "row.jsonl"
        path.write_bytes(b"".join(map(to_line, rows)))
        try:
            tasks = list(environment_of(entry, str(path)).tasks())
        except UsageError as error:
            raise UsageError(_by_place(str(error), str(path), places or range(len(rows)))) from None
    if len(tasks) != len(rows):
        raise UsageError(f"{entry.env} made {len(tasks)} tasks of {len(rows)} rows; a trainer needs one of each")
    return tasks


def _by_place(words: str, path: str, places: Sequence[int]) -> str:
    """What is said of a line of a file that nobody else knows, as said of a row."""
    return re.sub(rf"{re.escape(path)}:(\d+)", lambda found: f"row {places[int(found[1]) - 1]}", words)


def _task(row: JSON) -> Task:
    try:
        line = msgspec.convert(row, TaskLine)
    except msgspec.ValidationError as error:
        raise UsageError(f"task {row.get('id')!r}: {error}") from None
    return Task.from_line(line)


def read_row(text: str | bytes, where: str) -> dict[str, JSON]:
    """A row from its line of a file."""
    try:
        row = decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: a row is a JSON object, not {str(text)[:40]!r}")
    return row
