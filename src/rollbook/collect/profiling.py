"""A run's profile as rows that an environment takes again as `--data`: each task as it was, and its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rollbook.book.tasks import TaskFile
from rollbook.collect.report import Reading
from rollbook.core.json import JSON, decode, encode
from rollbook.errors import UsageError
from rollbook.stats.profile import Profile
from rollbook.stats.tasks import PASS

MARK = "profile"
"""The field that says whose profile a row carries. Numbers of an earlier profile give way to those of a new one."""


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
        self._profile = Profile(read.tally.columns, read.tally.answers.texts, ks, threshold)
        self.names = [prefix + name for name in self._profile.names]
        self._reserved = {*self.names, "id", "messages", "answer", MARK}
        self._several = len(read.names) > 1
        self._mark = {"run": read.book.manifest.run}

    def __iter__(self) -> Iterator[dict[str, JSON]]:
        """The rows; what a task brought along is `msgspec.Raw`."""
        tasks = self._read.book.tasks
        numbers = self._profile.rows(self._read.failed_by_task, range(len(tasks)))
        for row, found in numbers:
            task = self._task(tasks, row)
            mine = {self.prefix + name: value for name, value in found.items()} if self.prefix else found
            yield {**self._asked(task), **mine, MARK: self._mark}

    def _asked(self, task: _RawTask) -> dict[str, JSON]:
        """The task as it was asked, under the names that `--data` knows."""
        if not self._reserved.isdisjoint(task.fields) and not _profiled(task.fields.get(MARK)):
            clash = sorted(self._reserved.intersection(task.fields))[0]
            raise UsageError(
                f"task {task.id!r} has a field {clash!r} of its own; name the numbers apart: --prefix run_"
            )
        env = {"env": task.env} if self._several else {}
        return {"id": task.id, "messages": task.messages, "answer": task.answer, **env, **task.fields}

    def _task(self, tasks: TaskFile, row: int) -> _RawTask:
        return _task.decode(tasks.raw(row))

    def fields(self) -> list[str]:
        """Every column in order: the task's own, then the numbers."""
        tasks = self._read.book.tasks
        own = {name: None for row in range(len(tasks)) for name in self._asked(self._task(tasks, row))}
        return [*(name for name in own if name not in self.names and name != MARK), *self.names, MARK]

    def lines(self) -> Iterator[bytes]:
        """The rows as JSON, without newlines."""
        return map(encode, self)


def _profiled(mark: msgspec.Raw | None) -> bool:
    """Whether a field is the mark of an earlier profile."""
    value = None if mark is None else decode(mark)
    return isinstance(value, dict) and set(value) == {"run"}


def profile_lines(
    run: str | Path, ks: Sequence[int] | None = None, threshold: float = PASS, prefix: str = ""
) -> Iterator[bytes]:
    """The profile of a run as lines of JSON."""
    return ProfileRows(Reading([run]), ks, threshold, prefix).lines()
