"""A run's profile as rows that `--data` can read: each task unchanged, with its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rollbook.book import TaskFile
from rollbook.core import JSON, JSON_ERRORS, decode, encode
from rollbook.errors import BookError, UsageError
from rollbook.reports.report import RunData, check_measures
from rollbook.reports.table_files import ColumnKind, check_suffix, value_kind, widest_kind, write_table
from rollbook.stats import PASS_THRESHOLD, TaskProfile

PROFILE_FIELD = "profile"
"""The field that names the profile in a row and its columns: a new profile replaces those."""

TASK_COLUMNS = ("id", "messages", "answer")
"""The columns that come from the task itself."""

COLUMN_KINDS: dict[str, ColumnKind] = {"n": "integer", "failed": "integer", "majority": "text"}
"""The columns of a profile that are not fractions."""


class _RawTask(msgspec.Struct):
    """A line of tasks.jsonl whose values are copied as they are written."""

    id: str
    env: str
    messages: msgspec.Raw
    answer: msgspec.Raw = msgspec.Raw(b"null")
    fields: dict[str, msgspec.Raw] = {}


_task_decoder = msgspec.json.Decoder(_RawTask)


class ProfileRows:
    """The rows of a run's profile, one a task, in the order of tasks.jsonl."""

    def __init__(
        self, run: RunData, ks: Sequence[int] | None = None, threshold: float = PASS_THRESHOLD, prefix: str = ""
    ) -> None:
        self._run, self.prefix = run, prefix
        self._profile = TaskProfile(run.scored.columns, run.scored.answers.texts, ks, threshold, run.groups)
        self.names = [prefix + name for name in self._profile.names]
        self._profile_field = prefix + PROFILE_FIELD
        self._reserved = {*self.names, *TASK_COLUMNS, self._profile_field}
        self._several = len(run.book.manifest.environments) > 1
        passing = {} if threshold == PASS_THRESHOLD else {"threshold": threshold}
        mark = {"run": run.book.manifest.run, "columns": self.names, **passing}
        self._profile_value = msgspec.Raw(encode(mark))  # encoded once

    def __iter__(self) -> Iterator[dict[str, JSON]]:
        """Yield the rows; values from the task are `msgspec.Raw`."""
        tasks = self._run.book.tasks
        numbers = self._profile.rows(self._run.failed_by_task, range(len(tasks)))
        for row, found in numbers:
            task = self._read_task(tasks, row)
            mine = {self.prefix + name: value for name, value in found.items()} if self.prefix else found
            yield {**self._task_columns(task), **mine, self._profile_field: self._profile_value}

    def _task_columns(self, task: _RawTask) -> dict[str, JSON]:
        """Return the task under the names that `--data` reads."""
        own = _own_fields(task.fields)
        if not self._reserved.isdisjoint(own):
            clash = min(self._reserved.intersection(own))
            way = (
                "rename it in the data"
                if clash in TASK_COLUMNS
                else f"name the numbers apart: --prefix {self.prefix}run_"
            )
            raise UsageError(f"task {task.id!r} already has a field {clash!r}; {way}")
        env = {"env": task.env} if self._several else {}
        return {"id": task.id, "messages": task.messages, "answer": task.answer, **env, **own}

    def _read_task(self, tasks: TaskFile, row: int) -> _RawTask:
        try:
            return _task_decoder.decode(tasks.read_raw(row))
        except JSON_ERRORS as error:
            raise BookError(f"{self._run.book.path}: row {row + 1} of the tasks is not a task line: {error}") from None

    def fields(self) -> dict[str, ColumnKind]:
        """Every column in order, those of the task, then the numbers, with its kind of value."""
        tasks = self._run.book.tasks
        own: dict[str, ColumnKind] = {}
        for row in range(len(tasks)):
            for name, value in self._task_columns(self._read_task(tasks, row)).items():
                own[name] = widest_kind(own.get(name, "null"), value_kind(value))
        plain = {self.prefix + name: kind for name, kind in COLUMN_KINDS.items()}
        numbers: dict[str, ColumnKind] = {name: plain.get(name, "number") for name in self.names}
        return (
            {name: kind for name, kind in own.items() if name not in numbers} | numbers | {self._profile_field: "text"}
        )


def _own_fields(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the fields without columns of an earlier profile, and without nulls where the task has a value."""
    stale = {name for name in TASK_COLUMNS if name in fields and bytes(fields[name]) == b"null"}
    for name, value in fields.items():
        if name.endswith(PROFILE_FIELD) and (columns := _profile_columns(value)) is not None:
            stale.update(columns, [name])
    return {name: value for name, value in fields.items() if name not in stale} if stale else fields


def _profile_columns(field: msgspec.Raw) -> list[str] | None:
    """Return the columns of an earlier profile, if the field describes one."""
    mark = decode(field)
    if (
        not isinstance(mark, dict)
        or set(mark) - {"threshold"} != {"run", "columns"}
        or not isinstance(mark["columns"], list)
    ):
        return None
    return mark["columns"] if all(isinstance(name, str) for name in mark["columns"]) else None


class ProfileFile(msgspec.Struct, frozen=True):
    """A profile that was written: its file, its tasks, and how many of the run's rollouts it counts."""

    path: Path
    tasks: int
    scored: int
    requested: int
    live: bool


def write_profile(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    ks: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    prefix: str = "",
) -> ProfileFile:
    """Write the profile of a run to a .jsonl, .csv or .parquet file, by default RUN/profile.jsonl.

    Several directories of the same run are read as one.
    """
    target = Path(runs[0]) / "profile.jsonl" if out is None else Path(out)
    check_suffix(target)
    at, least = check_measures(ks, threshold)
    data = RunData(runs)
    count = write_table(target, ProfileRows(data, at, least, prefix))
    return ProfileFile(target, count, len(data.scored.columns), int(data.requested.sum()), data.live)


def profile_lines(
    run: str | Path, ks: Sequence[int] | None = None, threshold: float = PASS_THRESHOLD, prefix: str = ""
) -> Iterator[bytes]:
    """Return the profile of a run as lines of JSON, without newlines."""
    return map(encode, ProfileRows(RunData([run]), ks, threshold, prefix))
