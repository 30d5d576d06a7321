"""A run as it stands at one moment: everything a page asks of it, never changed once made."""

from __future__ import annotations

import threading
from functools import cached_property

import numpy as np

from rollbook.book.book import Book
from rollbook.book.presence import count_presences
from rollbook.book.status import state_of
from rollbook.collect.report import Reading, at_work
from rollbook.core.failure import Failure
from rollbook.core.json import JSON
from rollbook.core.task import Task
from rollbook.errors import UsageError
from rollbook.stats.columns import SILENT
from rollbook.view.following import FollowedFailures, LocatedTry
from rollbook.view.keeping import kept_numbers, profiled
from rollbook.view.located import Located
from rollbook.view.table import Table
from rollbook.view.vocabulary import Vocabulary

STRIP = 256
"""More samples than that are not drawn in a row of the table."""

Mark = float | str | None
"""A sample in a strip: its reward, the kind of its failure, or None while it is pending."""


class Snapshot:
    """The counted rollouts, the failures that stand, the numbers and the table of tasks."""

    def __init__(
        self,
        version: int,
        reading: Reading,
        located: Located,
        failures: FollowedFailures,
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
        self.failed = {(mark.task, mark.sample): mark.failure for mark in failures.standing(self.book)}

    @property
    def numbers(self) -> dict[str, JSON]:
        """The report, and the table's columns; from RUN/index where they were worked out before."""
        with self._lock:  # two requests at once are not to work them out twice
            return self._numbers

    @cached_property
    def _numbers(self) -> dict[str, JSON]:
        return kept_numbers(self.reading)

    @property
    def state(self) -> str:
        """Where the run stands just now, in one word."""
        if not count_presences(self.book.path):
            return "planned"
        requested, scored = int(self.reading.asked.sum()), len(self.located.columns)
        failed = sum(self.reading.failed_by_task.values())
        return state_of(requested, scored, requested - scored - failed, at_work(self.book))

    @cached_property
    def table(self) -> Table:
        """One row a task."""
        return Table(self.book.tasks, self.numbers["columns"], lambda: profiled(self.reading, None))

    @cached_property
    def texts(self) -> list[str]:
        """The answers by their numbers."""
        return self.reading.tally.answers.texts

    @cached_property
    def scale(self) -> tuple[float, float]:
        """Between what rewards are coloured: from 0 to 1, and as far beyond as any reward lies."""
        rewards = self.located.columns.reward
        return float(rewards.min(initial=0.0)), float(rewards.max(initial=1.0))

    def row(self, task: str) -> int:
        """The row of a task; a UsageError if there is none of that id."""
        row = self.book.tasks.rows.get(task)
        if row is None or row >= len(self.reading.asked):
            raise UsageError(f"no task is called {task[:200]!r} in this run")
        return row

    def task(self, row: int) -> Task:
        """A task by its row."""
        return self.book.tasks.task(row)

    def samples(self, row: int) -> list[int]:
        """The samples that were asked of a task."""
        parts = np.flatnonzero((self._rows[:, 0] <= row) & (row < self._rows[:, 1])).tolist()
        return sorted({sample for part in parts for sample in range(*self._samples[part])})

    def failure(self, task: str, sample: int) -> Failure | None:
        """Why a rollout without a score failed; None if it is pending."""
        return self.failed.get((task, sample))

    def strip(self, row: int, task: str) -> list[Mark]:
        """What came of each sample of a task: a failure and what is pending are not a reward of 0."""
        places = self.located.of(row)
        rewards = self.located.columns.reward[places].tolist()
        scored = dict(zip(self.located.sample[places].tolist(), rewards, strict=True))
        return [self._mark(scored, task, sample) for sample in self.samples(row)[:STRIP]]

    def _mark(self, scored: dict[int, float], task: str, sample: int) -> Mark:
        if sample in scored:
            return scored[sample]
        failure = self.failure(task, sample)
        return failure.kind if failure else None

    def answer(self, place: int) -> str | None:
        """The answer of a rollout, as it is voted for."""
        number = int(self.located.columns.answer[place])
        return None if number == SILENT else self.texts[number]

    def parts(self, place: int) -> dict[str, float]:
        """The reward parts of a rollout."""
        held, names = self.located.columns.parts, self.reading.tally.parts.texts
        low, high = np.searchsorted(held.place, [place, place + 1])
        pairs = zip(held.name[low:high].tolist(), held.value[low:high].tolist(), strict=True)
        return {names[name]: value for name, value in pairs}

    def tries_of(self, task: str, sample: int) -> list[LocatedTry]:
        """The failed attempts at a rollout, in their order."""
        return self._tries.get((task, sample), [])

    @cached_property
    def _tries(self) -> dict[tuple[str, int], list[LocatedTry]]:
        found: dict[tuple[str, int], list[LocatedTry]] = {}
        for each in sorted(self.tries, key=lambda each: (each.mark.round, each.mark.attempt)):
            found.setdefault((each.mark.task, each.mark.sample), []).append(each)
        return found
