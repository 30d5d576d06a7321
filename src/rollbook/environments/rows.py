"""Rows that a user brings, read as a stream, each mistake named by file and line; `records` reads what is no JSON."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, cast

import msgspec

from rollbook.core.json import JSON, decode
from rollbook.core.message import Message
from rollbook.core.task import Task
from rollbook.environments.template import Template
from rollbook.errors import UsageError

PROMPTS = ("messages", "prompt", "question", "problem")
ANSWERS = ("answer", "expected_answer")
OTHER_PROMPTS = ("Problem", "Question")
OTHER_ANSWERS = ("Answer",)
IDS = ("id", "unique_id", "uuid", "task_id", "ID")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
GYM = "responses_create_params"
"""Where rows of NeMo Gym have what the model is shown: under `input`."""

ROW_BYTES = 128 << 20
"""The largest row: hidden tests of LiveCodeBench come to tens of megabytes; beyond, a file has lost its line ends."""


class Row(msgspec.Struct, frozen=True):
    """One object of a file, and where it stands."""

    path: str
    line: int
    values: dict[str, JSON]

    @property
    def where(self) -> str:
        """The place of this row, as every message about it begins."""
        return f"{self.path}:{self.line}"

    @property
    def id(self) -> str:
        """Its own `id` (or unique_id, uuid, task_id), else the name of the file and the number of the line."""
        given = self.first(*IDS)
        return f"{_stem(self.path)}-{self.line}" if given is None else str(self.values[given])

    def first(self, *names: str) -> str | None:
        """The first of these fields that the row has."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def decoded(self, name: str | None) -> JSON:
        """A field that may be written as text of JSON, as lists are in cells of a CSV file."""
        return None if name is None else unfolded(self.values[name])

    @property
    def has(self) -> str:
        """The names of its fields, for messages about those that it lacks."""
        return ", ".join(self.values) or "nothing"

    def task(self, instruction: str = "", template: Template | None = None) -> Task:
        """The task of a row: a prompt, an answer if there is one, everything else kept as fields.

        `instruction` is put after a prompt that is text; messages are taken as they are. A template makes the whole
        prompt instead.
        """
        answered = self.first(*ANSWERS, *OTHER_ANSWERS)
        if template is not None:
            asked, task = None, Task(self.id, template.fill(self.values, self.where))
        else:
            asked = self.first(GYM, *PROMPTS, *OTHER_PROMPTS)
            if asked is None:
                raise UsageError(f"{self.where}: no {' / '.join(PROMPTS)}; it has: {self.has}")
            task = self._ask(asked, instruction)
        task.answer = self.values[answered] if answered else None
        task.fields = {k: v for k, v in self.values.items() if k not in ("id", asked, answered)}
        return task

    def _ask(self, asked: str, instruction: str) -> Task:
        value = self.values[asked]
        if asked == GYM:
            value = _said(value) if isinstance(value, dict) else None
            asked = f"{GYM}.input"
        if isinstance(value, str) and value.strip():
            return Task(self.id, f"{value}\n\n{instruction}" if instruction else value)
        if not isinstance(value, list) or not value:
            raise UsageError(f"{self.where}: {asked} must be text or a list of messages, and not empty")
        try:
            task = Task(self.id, messages=value)
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.where}: {asked}: {error}") from None
        if (wrong := _mistake(task.messages)) is not None:
            raise UsageError(f"{self.where}: {asked}: {wrong}")
        return task


@cache
def _stem(path: str) -> str:
    return Path(path.partition("?")[0]).name.split(".")[0]


def _mistake(messages: list[Message]) -> str | None:
    """What keeps messages from being asked."""
    role = next((m.role for m in messages if m.role not in ROLES), None)
    if role is not None:
        return f"unknown role {role!r}; give one of {', '.join(ROLES)}"
    bare = next((n for n, m in enumerate(messages, 1) if m.content is None and not m.tool_calls), None)
    if bare is not None:
        return f"message {bare} has no content"
    return None if any(m.content for m in messages) else "all messages are empty"


def unfolded(value: JSON) -> JSON:
    """A value that may be written as text of JSON; other text is itself."""
    if not isinstance(value, str):
        return value
    try:
        return decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _said(params: dict[str, JSON]) -> JSON:
    """What a row of Gym shows the model, as chat messages: its parts of text as text, its instructions first."""
    given, first = params.get("input"), params.get("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) and first else given
    if not isinstance(items, list):
        return items
    shown = [{**item, "content": _text(item.get("content"))} if isinstance(item, dict) else item for item in items]
    return [{"role": "system", "content": str(first)}, *shown] if first else shown


def _text(content: JSON) -> JSON:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return content
    if any(part.get("type") not in ("input_text", "output_text", "text") for part in content):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def rows(path: str | Path) -> Iterator[Row]:
    """The rows of a file or of `hf://org/name`, one at a time; one without any is a UsageError."""
    from rollbook.environments.records import reader

    row, records = None, reader(str(path))
    try:
        for row in records or _lines(Path(path)):
            yield row
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    if row is None:
        raise UsageError(f"{path}: holds no rows{'' if records else '; put one JSON object on each line'}")


def _lines(path: Path) -> Iterator[Row]:
    """The rows of a JSON Lines file (`.gz` too); blank lines are skipped."""
    with _opened(path) as stream:
        for number in count(1):
            line = stream.readline(ROW_BYTES + 1)
            if not line:
                return
            if len(line) > ROW_BYTES:
                raise UsageError(f"{path}:{number}: a row of more than {ROW_BYTES >> 20} MiB; is it one object a line?")
            if line.strip():
                yield _row(str(path), number, line)


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _row(path: str, number: int, line: bytes) -> Row:
    try:
        value = decode(line.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}:{number}: not UTF-8 (byte {error.start + 1}); save the file as UTF-8") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}:{number}: not JSON: {_half_a_character(line) or error}") from None
    except RecursionError:
        raise UsageError(f"{path}:{number}: nested too deeply to be read") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}:{number}: a JSON object is needed, this is {type(value).__name__}")
    return Row(path, number, value)


def _half_a_character(line: bytes) -> str | None:
    """Words for a lone surrogate: the decoder calls it truncated data, which sends people looking for another thing."""
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        return f"\\u{half:x} is half a character (a lone surrogate); write the pair, or remove it"
    except (ValueError, RecursionError):
        return None
    return None
