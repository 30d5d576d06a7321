"""A run's profile as rows that an environment takes again as `--data`: each task as it was, and its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rollbook.book.tasks import TaskFile
from rollbook.collect.report import Reading
from rollbook.collect.tablefile import Kind, kind_of, wider
from rollbook.core.json import JSON, decode, encode
from rollbook.errors import BookError, UsageError
from rollbook.stats.profile import Profile
from rollbook.stats.tasks import PASS

MARK = "profile"
"""The field that says whose profile a row carries, and in which columns: those give way to a new profile's."""

PLACED = ("id", "messages", "answer")
"""What a row has of its task by itself."""

OF_NUMBERS: dict[str, Kind] = {"n": "integer", "failed": "integer", "majority": "text"}
"""The columns of a profile that hold something else than fractions."""


class _RawTask(msgspec.Struct):
    """A line of tasks.jsonl whose values are carried over as they are written."""

    id: str
    env: str
    messages: msgspec.Raw
    answer: msgspec.Raw = msgspec.Raw(b"null")
    fields: dict[str, msgspec.Raw] = {}


_task = msgspec.json.Decoder(_RawTask)


class ProfileRows:
    """The rows of a run's profile, one a task, in the order of tasks.jsonl."""

    def __init__(
        self,
        read: Reading,
        ks: Sequence[int] | None = None,
        threshold: float = PASS,
        prefix: str = "",
    ) -> None:
        self._read, self.prefix = read, prefix
        self._profile = Profile(read.tally.columns, read.tally.answers.texts, ks, threshold, read.groups)
        self.names = [prefix + name for name in self._profile.names]
        self._marked = prefix + MARK
        self._reserved = {*self.names, *PLACED, self._marked}
        self._several = len(read.names) > 1
        passing = {} if threshold == PASS else {"threshold": threshold}
        mark = {"run": read.book.manifest.run, "columns": self.names, **passing}
        self._mark = msgspec.Raw(encode(mark))  # encoded once

    def __iter__(self) -> Iterator[dict[str, JSON]]:
        """The rows; what a task brought along is `msgspec.Raw`."""
        tasks = self._read.book.tasks
        numbers = self._profile.rows(self._read.failed_by_task, range(len(tasks)))
        for row, found in numbers:
            task = self._task(tasks, row)
            mine = {self.prefix + name: value for name, value in found.items()} if self.prefix else found
            yield {**self._asked(task), **mine, self._marked: self._mark}

    def _asked(self, task: _RawTask) -> dict[str, JSON]:
        """The task as it was asked, under the names that `--data` knows."""
        own = _own(task.fields)
        if not self._reserved.isdisjoint(own):
            clash = min(self._reserved.intersection(own))
            way = "rename it in the data" if clash in PLACED else f"name the numbers apart: --prefix {self.prefix}run_"
            raise UsageError(f"task {task.id!r} has a field {clash!r} of its own; {way}")
        env = {"env": task.env} if self._several else {}
        return {"id": task.id, "messages": task.messages, "answer": task.answer, **env, **own}

    def _task(self, tasks: TaskFile, row: int) -> _RawTask:
        try:
            return _task.decode(tasks.raw(row))
        except msgspec.DecodeError as error:
            raise BookError(f"{self._read.book.path}: row {row + 1} of the tasks is not a task line: {error}") from None

    def fields(self) -> dict[str, Kind]:
        """Every column in order, the task's own, then the numbers, with the kind of value that it holds."""
        tasks = self._read.book.tasks
        own: dict[str, Kind] = {}
        for row in range(len(tasks)):
            for name, value in self._asked(self._task(tasks, row)).items():
                own[name] = wider(own.get(name, "null"), kind_of(value))
        plain = {self.prefix + name: kind for name, kind in OF_NUMBERS.items()}
        numbers: dict[str, Kind] = {name: plain.get(name, "number") for name in self.names}
        return {name: kind for name, kind in own.items() if name not in numbers} | numbers | {self._marked: "text"}

    def lines(self) -> Iterator[bytes]:
        """The rows as JSON, without newlines."""
        return map(encode, self)


def _own(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The fields without what an earlier profile wrote, and without nulls where the task has a value anyway."""
    stale = {name for name in PLACED if name in fields and bytes(fields[name]) == b"null"}
    for name, value in fields.items():
        if name.endswith(MARK) and (columns := _columns_of(value)) is not None:
            stale.update(columns, [name])
    return {name: value for name, value in fields.items() if name not in stale} if stale else fields


def _columns_of(field: msgspec.Raw) -> list[str] | None:
    """The columns of an earlier profile, if the field is its mark."""
    mark = decode(field)
    if (
        not isinstance(mark, dict)
        or set(mark) - {"threshold"} != {"run", "columns"}
        or not isinstance(mark["columns"], list)
    ):
        return None
    return mark["columns"] if all(isinstance(name, str) for name in mark["columns"]) else None


def profile_lines(
    run: str | Path, ks: Sequence[int] | None = None, threshold: float = PASS, prefix: str = ""
) -> Iterator[bytes]:
    """The profile of a run as lines of JSON."""
    return ProfileRows(Reading([run]), ks, threshold, prefix).lines()
