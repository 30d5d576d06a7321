"""Rows that a user brings: JSON Lines, read as a stream, each mistake named by file and line."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import msgspec

from rollbook.core.json import JSON, decode
from rollbook.core.task import Task
from rollbook.errors import UsageError

PROMPTS = ("messages", "prompt", "question", "problem")
ANSWERS = ("answer", "expected_answer")


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
        """Its own `id`, else the name of the file and the number of the line."""
        given = self.values.get("id")
        return f"{Path(self.path).name.split('.')[0]}-{self.line}" if given is None else str(given)

    def task(self, instruction: str = "") -> Task:
        """The task of a row: a prompt, an answer if there is one, everything else kept as fields.

        `instruction` is put after a prompt that is text; messages are taken as they are.
        """
        asked = next((k for k in PROMPTS if self.values.get(k) is not None), None)
        if asked is None:
            raise UsageError(f"{self.where}: no {' / '.join(PROMPTS)}; it has: {', '.join(self.values) or 'nothing'}")
        answered = next((k for k in ANSWERS if self.values.get(k) is not None), None)
        task = self._ask(asked, instruction)
        task.answer = self.values[answered] if answered else None
        task.fields = {k: v for k, v in self.values.items() if k not in ("id", asked, answered)}
        return task

    def _ask(self, asked: str, instruction: str) -> Task:
        value = self.values[asked]
        if isinstance(value, str) and value.strip():
            return Task(self.id, f"{value}\n\n{instruction}" if instruction else value)
        if not isinstance(value, list) or not value:
            raise UsageError(f"{self.where}: {asked} must be text or a list of messages, and not empty")
        try:
            return Task(self.id, messages=value)
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.where}: {asked}: {error}") from None


def rows(path: str | Path) -> Iterator[Row]:
    """The rows of a JSON Lines file (`.gz` too), one at a time; blank lines are skipped."""
    empty = True
    try:
        with _opened(Path(path)) as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    empty = False
                    yield _row(str(path), number, line)
    except (OSError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    if empty:
        raise UsageError(f"{path}: holds no rows; put one JSON object on each line")


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _row(path: str, number: int, line: bytes) -> Row:
    try:
        value = decode(line.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}:{number}: not UTF-8 (byte {error.start + 1}); save the file as UTF-8") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}:{number}: a JSON object is needed, this is {type(value).__name__}")
    return Row(path, number, value)
