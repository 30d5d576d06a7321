"""tasks.jsonl: written once, then read row by row without ever being held in memory."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from rollbook.book.media import MediaStore
from rollbook.core import JSON_ERRORS, Task, TaskLine, encode_line
from rollbook.errors import BookError, UsageError

MAX_CACHED_TASKS = 256
_line_decoder = msgspec.json.Decoder(TaskLine)


class _TaskId(msgspec.Struct):
    id: str


_id_decoder = msgspec.json.Decoder(_TaskId)


def read_rows(path: Path, count: int) -> dict[str, int]:
    """Return task id to row, for the first `count` rows of a tasks.jsonl. Large: do not keep it longer than needed."""
    with open(path, "rb", buffering=1 << 20) as file:
        return {_read_id(path, row, line): row for row, line in enumerate(islice(file, count))}


def _read_id(path: Path, row: int, line: bytes) -> str:
    try:
        return _id_decoder.decode(line).id
    except JSON_ERRORS as error:
        raise BookError(f"{path}:{row + 1}: not a task line: {error}") from None


def write_tasks(
    file: BinaryIO, tasks: Iterable[Task], env: str, seen: set[str], media: MediaStore, roots: Sequence[Path] = ()
) -> int:
    """Append tasks under an environment's name; duplicates and what JSON cannot hold are errors. Return how many.

    Images and sounds are stored first; a path of one must be below one of the `roots`.
    """
    count = 0
    for count, task in enumerate(tasks, start=1):  # noqa: B007
        if not isinstance(task, Task):
            raise UsageError(f"{env}: tasks() gave a {type(task).__name__}, not a Task")
        if task.id in seen:
            raise UsageError(f"{env}: two tasks have the id {task.id!r}; ids must be unique in a run")
        seen.add(task.id)
        task.env = env
        store_task_media(task, media, roots)
        try:
            file.write(encode_line(task.line()))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"{env}: task {task.id!r} cannot be stored as JSON: {error}") from None
    return count


def store_task_media(task: Task, media: MediaStore, roots: Sequence[Path] = ()) -> None:
    """Store the images and sounds of a task, whose messages then refer to them."""
    try:
        task.messages = list(media.store_parts(task.messages, roots))
    except UsageError as error:
        raise UsageError(f"{task.env}: task {task.id!r}: {error}") from None


class TaskFile:
    """Rows of tasks.jsonl by number, through an index of offsets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets = array("Q", [0])
        self._rows: dict[str, int] | None = None
        self._cache: dict[int, Task] = {}
        self._handle = os.open(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._handle)
        self._index_rows()

    def _index_rows(self) -> None:
        offset = self._offsets[-1]
        with open(self.path, "rb", buffering=1 << 20) as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                self._offsets.append(offset)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def refresh(self) -> None:
        """Index rows that were appended since."""
        self._index_rows()

    def read_raw(self, row: int) -> bytes:
        """Return the bytes of one row."""
        start, stop = self._offsets[row], self._offsets[row + 1]
        return os.pread(self._handle, stop - start, start)

    def read(self, row: int) -> Task:
        """Return the task of one row; a few are cached, since samples of one task come one after another."""
        task = self._cache.get(row)
        if task is None:
            if len(self._cache) >= MAX_CACHED_TASKS:
                self._cache.clear()
            task = self._cache[row] = self._decode(row, self.read_raw(row))
        return task

    def _decode(self, row: int, raw: bytes) -> Task:
        try:
            return Task.from_line(_line_decoder.decode(raw))
        except JSON_ERRORS as error:
            raise BookError(f"{self.path}:{row + 1}: not a task line: {error}") from None

    def read_many(self, rows: Iterable[int]) -> dict[int, Task]:
        """Return the tasks of several rows with one read: the rows of a chunk are adjacent."""
        wanted = sorted(set(rows))
        if not wanted:
            return {}
        start, stop = self._offsets[wanted[0]], self._offsets[wanted[-1] + 1]
        data = os.pread(self._handle, stop - start, start)
        found = {}
        for row in wanted:
            raw = data[self._offsets[row] - start : self._offsets[row + 1] - start]
            found[row] = self._decode(row, raw)
        return found

    def __iter__(self) -> Iterator[Task]:
        return (self._decode(row, self.read_raw(row)) for row in range(len(self)))

    @property
    def rows(self) -> dict[str, int]:
        """Task id to row; built on first use, and again when there are more rows. Several threads may use it."""
        rows = self._rows
        if rows is None or len(rows) < len(self):
            rows = self._rows = read_rows(self.path, len(self))
        return rows

    def close(self) -> None:
        """Close the file; it is also closed when this object is collected."""
        self._handle = -1
        self._close()
