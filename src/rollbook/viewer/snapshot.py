"""An immutable view of a run at one moment: its counted rollouts, failures, numbers and task table.

The numbers are cached in RUN/index under a hash of what they were computed from; the cache may be deleted. The table
has one row for each task and is sorted and filtered here, so that a page holds only what it shows.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path

import msgspec
import numpy as np

from rollbook import stats
from rollbook.book import Book, TaskFile, count_workers, name_state
from rollbook.core import JSON, JSON_ERRORS, Failure, Task
from rollbook.errors import BookError, TokenError, UsageError
from rollbook.reports import Report, RunData, build_report, has_live_worker, replace_file
from rollbook.stats import NO_ANSWER, PASS_THRESHOLD, SCALAR_COLUMNS, Expression, TaskProfile, to_identifier
from rollbook.viewer.journal_index import FailureFollower, LocatedAttempt, RolloutIndex
from rollbook.viewer.vocabulary import Vocabulary

_SURROGATES = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Replace the surrogates that stand for bytes that are not UTF-8, so that a text can be sent.

    >>> replace_surrogates("caf\\udce9")
    'caf\ufffd'
    """
    return _SURROGATES.sub("\ufffd", text)


MIN_CACHED_ROLLOUTS = 10_000
"""Fewer rollouts are counted again as fast."""

CACHE_NAME = "numbers.msgpack"
MAX_MISSING = 100


def read_numbers(reading: RunData) -> dict[str, JSON]:
    """Return the report of a run as JSON, and the columns of its tasks by row, from the cache if possible."""
    if len(reading.scored.columns) < MIN_CACHED_ROLLOUTS:
        return compute_numbers(reading)
    place, key = reading.book.path / "index" / CACHE_NAME, _make_cache_key(reading)
    with suppress(OSError, *JSON_ERRORS):
        held = msgspec.msgpack.decode(place.read_bytes())
        if isinstance(held, dict) and held.get("key") == key:
            return held
    made = {**compute_numbers(reading), "key": key}
    if made["report"]["damaged"] or made["report"]["token_damage"]:
        return made  # the damage may be repaired
    with suppress(OSError):  # a full disk, or a read-only copy
        place.parent.mkdir(exist_ok=True)
        with replace_file(place) as aside:
            aside.write_bytes(msgspec.msgpack.encode(made))
    return made


def compute_columns(reading: RunData, ks: Sequence[int] | None) -> dict[str, list[JSON]]:
    """Return the columns of a run's profile, each with one value for each task."""
    tally = reading.scored
    profile = TaskProfile(tally.columns, tally.answers.texts, ks, PASS_THRESHOLD, reading.groups)
    found = [numbers for _, numbers in profile.rows(reading.failed_by_task, range(len(reading.requested)))]
    return {name: [each[name] for each in found] for name in profile.names}


def compute_numbers(reading: RunData) -> dict[str, JSON]:
    """Compute them. Columns @k are left out: they are rarely used and take as long as all the others."""
    report, token_damage = _compute_report(reading)
    columns = compute_columns(reading, [])
    asked = reading.requested.tolist()
    pending = [k - n - failed for k, n, failed in zip(asked, columns["n"], columns["failed"], strict=True)]
    plain = make_plain_report(report) | {"missing": report.missing[:MAX_MISSING], "token_damage": token_damage}
    return {"report": plain, "columns": columns | {"pending": pending}}


def make_plain_report(report: Report) -> dict[str, JSON]:
    """Return a report as JSON that a page can show."""
    shown = report.json() | {"path": replace_surrogates(report.path)}
    shown["merged"] = list(map(replace_surrogates, report.merged))
    plain: dict[str, JSON] = msgspec.to_builtins(shown, str_keys=True)
    return plain


def _compute_report(reading: RunData) -> tuple[Report, str]:
    """Return the report and an error; where token records are damaged, forks are not counted."""
    try:
        return build_report(reading, forks=not reading.live), ""  # a live run is counted again and again
    except (TokenError, BookError) as error:
        where = replace_surrogates(str(reading.book.path / "journals"))
        damage = f"forks are not counted: {replace_surrogates(str(error))} (in {where}/*.tokens)"
        return build_report(reading, forks=False), damage


def _make_cache_key(reading: RunData) -> str:
    """Return a hash of the data of the numbers and of the code that computes them."""
    digest = hashlib.blake2b(_hash_code(), digest_size=16)
    columns = reading.scored.columns
    arrays = [getattr(columns, name) for name in SCALAR_COLUMNS]
    arrays += [getattr(columns.parts, name) for name in ("place", "name", "value")]
    for array in (*arrays, reading.requested, reading.envs):
        digest.update(array.tobytes())
    texts = [reading.scored.answers.texts, reading.scored.parts.texts, reading.names, reading.missing]
    run = reading.book.manifest.run, os.fsencode(reading.book.path)
    rest = [reading.failed, reading.live, run, reading.scored.dropped, reading.damaged, texts]
    digest.update(msgspec.msgpack.encode([rest, list(reading.failed_by_task.items())]))
    return digest.hexdigest()


@cache
def _hash_code() -> bytes:
    sources = sorted(Path(stats.__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in [*sources, Path(__file__)])).digest()


TASK_FIELDS = ("id", "env", "answer")
"""The columns from the task, in addition to its own fields."""


class _TaskFields(msgspec.Struct):
    id: str
    env: str = ""
    answer: JSON = None
    fields: dict[str, JSON] = {}


_task_decoder = msgspec.json.Decoder(_TaskFields)


class TaskTable:
    """The numbers of every task by row.

    `more` computes further columns (those @k). They, and the tasks' own fields, are loaded on first use.
    """

    def __init__(
        self, tasks: TaskFile, columns: dict[str, list[JSON]], more: Callable[[], dict[str, list[JSON]]]
    ) -> None:
        self._tasks, self._more = tasks, more
        self.columns = columns
        self._ready = {to_identifier(name): values for name, values in columns.items()}

    def __len__(self) -> int:
        return len(self.columns["n"])

    @cached_property
    def _numbers(self) -> dict[str, list[JSON]]:
        return {to_identifier(name): values for name, values in self._more().items()} | self._ready

    @cached_property
    def _fields(self) -> dict[str, list[JSON]]:
        """The tasks' own fields by name; numbers of the same name take precedence."""
        asked = [_task_decoder.decode(self._tasks.read_raw(row)) for row in range(len(self))]
        found: dict[str, list[JSON]] = {name: [getattr(each, name) for each in asked] for name in TASK_FIELDS}
        names = sorted({name for each in asked for name in each.fields} - set(TASK_FIELDS) - set(self._numbers))
        return found | {name: [each.fields.get(name) for each in asked] for name in names}

    def column(self, name: str) -> Sequence[JSON]:
        """Return a column by its name in expressions."""
        if name in self._ready:
            return self._ready[name]
        if name in self._numbers:
            return self._numbers[name]
        if name in self._fields:
            return self._fields[name]
        raise UsageError(f"no column is called {name[:80]!r}; known: {', '.join(self.names())}")

    def names(self) -> list[str]:
        """Return every column name as used in expressions."""
        return [*self._numbers, *self._fields]

    def filter_rows(self, keep: str) -> list[int]:
        """Return the rows for which an expression of `curate` is true; all rows for an empty one."""
        if not keep.strip():
            return list(range(len(self)))
        expression = Expression(keep)
        if not expression.names <= set(self._ready):
            expression.check_names(self.names())
        names = sorted(expression.names)
        columns = [self.column(name) for name in names]
        rows = zip(*columns, strict=True) if names else iter([()] * len(self))
        return [row for row, values in enumerate(rows) if expression.matches(dict(zip(names, values, strict=True)))]

    def sort_rows(self, rows: Sequence[int], sort: str, descending: bool) -> Sequence[int]:
        """Sort rows by a column; unknown values come last either way, and equals stay in task order."""
        if not sort:
            return rows[::-1] if descending else rows
        values = self.column(sort)
        known = [row for row in rows if values[row] is not None]
        unknown = [row for row in rows if values[row] is None]
        return [*sorted(known, key=lambda row: _sort_key(values[row]), reverse=descending), *unknown]

    def values(self, row: int, names: Iterable[str]) -> dict[str, JSON]:
        """Return some numbers of one row."""
        return {name: self.columns[name][row] for name in names if name in self.columns}


def _sort_key(value: JSON) -> tuple[int, float, str]:
    """Order numbers before text before other values, so that any field can be sorted."""
    if isinstance(value, bool | int | float):
        return 0, float(value) if abs(value) < 1 << 1000 else float("inf"), ""
    return (1, 0.0, value) if isinstance(value, str) else (2, 0.0, msgspec.json.encode(value).decode())


def find_state(book: Book, requested: int, scored: int, pending: int) -> str:
    """Return the state of a run in one word."""
    if not count_workers(book.path):
        return "planned"
    return name_state(requested, scored, pending, has_live_worker(book))


MAX_STRIP = 256
"""The most samples drawn in a row of the table."""

SampleMark = float | str | None
"""A sample in a strip: its reward, the kind of its failure, or None while it is pending."""


class Snapshot:
    """The counted rollouts, the final failures, the numbers and the table of tasks."""

    def __init__(
        self,
        version: int,
        reading: RunData,
        located: RolloutIndex,
        failures: FailureFollower,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.version, self.reading, self.located = version, reading, located
        self.vocabulary = vocabulary
        self.book: Book = reading.book
        self.tries = list(failures.tries)
        parts = self.book.plan.parts
        self._samples = [part.samples for part in parts]
        self._rows = np.array([part.tasks for part in parts], np.int64).reshape(-1, 2)
        self._lock = threading.Lock()
        self.failed = {(line.task, line.sample): line.failure for line in failures.list_final(self.book)}

    @property
    def numbers(self) -> dict[str, JSON]:
        """The report and the table's columns; from RUN/index where they were computed before."""
        with self._lock:  # two requests at once must not compute them twice
            return self._numbers

    @cached_property
    def _numbers(self) -> dict[str, JSON]:
        return read_numbers(self.reading)

    @property
    def state(self) -> str:
        """The current state of the run in one word."""
        requested, scored = int(self.reading.requested.sum()), len(self.located.columns)
        failed = sum(self.reading.failed_by_task.values())
        return find_state(self.book, requested, scored, requested - scored - failed)

    @cached_property
    def table(self) -> TaskTable:
        """The table with one row for each task."""
        return TaskTable(self.book.tasks, self.numbers["columns"], lambda: compute_columns(self.reading, None))

    @cached_property
    def texts(self) -> list[str]:
        """The answers by their numbers."""
        return self.reading.scored.answers.texts

    @cached_property
    def scale(self) -> tuple[float, float]:
        """The range of reward colours: from 0 to 1, extended to all rewards."""
        rewards = self.located.columns.reward
        return float(rewards.min(initial=0.0)), float(rewards.max(initial=1.0))

    def row(self, task: str) -> int:
        """Return the row of a task; raise a UsageError if there is none of that id."""
        row = self.book.tasks.rows.get(task)
        if row is None or row >= len(self.reading.requested):
            raise UsageError(f"no task is called {task[:200]!r} in this run")
        return row

    def task(self, row: int) -> Task:
        """Return a task by its row."""
        return self.book.tasks.read(row)

    def samples(self, row: int) -> list[int]:
        """Return the planned samples of a task."""
        parts = np.flatnonzero((self._rows[:, 0] <= row) & (row < self._rows[:, 1])).tolist()
        return sorted({sample for part in parts for sample in range(*self._samples[part])})

    def failure(self, task: str, sample: int) -> Failure | None:
        """Return why a rollout without a score failed; None if it is pending."""
        return self.failed.get((task, sample))

    def strip(self, row: int, task: str) -> list[SampleMark]:
        """Return the result of each sample of a task: failed and pending ones are not a reward of 0."""
        places = self.located.find_task(row)
        rewards = self.located.columns.reward[places].tolist()
        scored = dict(zip(self.located.sample[places].tolist(), rewards, strict=True))
        return [self._mark(scored, task, sample) for sample in self.samples(row)[:MAX_STRIP]]

    def _mark(self, scored: dict[int, float], task: str, sample: int) -> SampleMark:
        if sample in scored:
            return scored[sample]
        failure = self.failure(task, sample)
        return failure.kind if failure else None

    def answer(self, place: int) -> str | None:
        """Return the normalized answer of a rollout."""
        number = int(self.located.columns.answer[place])
        return None if number == NO_ANSWER else self.texts[number]

    def parts(self, place: int) -> dict[str, float]:
        """Return the reward parts of a rollout."""
        held, names = self.located.columns.parts, self.reading.scored.parts.texts
        low, high = np.searchsorted(held.place, [place, place + 1])
        pairs = zip(held.name[low:high].tolist(), held.value[low:high].tolist(), strict=True)
        return {names[name]: value for name, value in pairs}

    def tries_of(self, task: str, sample: int) -> list[LocatedAttempt]:
        """Return the failed attempts at a rollout, in order."""
        return self._tries.get((task, sample), [])

    @cached_property
    def _tries(self) -> dict[tuple[str, int], list[LocatedAttempt]]:
        found: dict[tuple[str, int], list[LocatedAttempt]] = {}
        for each in sorted(self.tries, key=lambda each: (each.line.round, each.line.attempt)):
            found.setdefault((each.line.task, each.line.sample), []).append(each)
        return found
