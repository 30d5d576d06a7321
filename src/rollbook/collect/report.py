"""The numbers of a run, from its files in one streaming pass; nothing is averaged that was not scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from rollbook.book.book import Book
from rollbook.book.durable import write_whole
from rollbook.book.marks import Failed, FailedMark
from rollbook.book.presence import Watch, read_presences
from rollbook.collect.continuity import Continuity, continuity
from rollbook.collect.shards import open_shards
from rollbook.collect.tally import Tally
from rollbook.core.failure import Failure
from rollbook.core.json import JSON, pretty
from rollbook.errors import BookError
from rollbook.stats.columns import Columns, Ints
from rollbook.stats.summary import Metrics, metrics
from rollbook.stats.tasks import PASS

MISSING_KEPT = 1000
FailureReader: TypeAlias = Callable[[Book], Iterable[FailedMark]]
"""Gives the final failures of a book that stand."""


class Report(msgspec.Struct, frozen=True):
    """A run's numbers: requested = scored + failed + pending, for every environment and over all.

    `overall` is all environments of the run together. `merged` names the other directories of the run that were read,
    and `disagreeing` counts the rollouts of which those have another reward or answer; `kept_from` is the run whose
    verifier gave some of the scores, where this run's own gave only the others. `continuity` says of environments with
    several turns how often those did not continue in their tokens.
    """

    run: str
    path: str
    model: str
    scripted: bool
    live: bool
    requested: int
    scored: int
    failed: dict[str, int]
    pending: int
    dropped: int
    overall: Metrics
    environments: dict[str, Metrics]
    missing: list[tuple[str, int, str]]
    merged: list[str] = []
    disagreeing: int = 0
    kept_from: str = ""
    continuity: dict[str, Continuity] = {}

    @property
    def disagreement(self) -> str:
        """That the directories of a run do not say the same, and which of them counts; empty if they do."""
        if not self.disagreeing:
            return ""
        words = (
            f"the directories have another reward or answer for {self.disagreeing} rollouts that several of them hold"
        )
        return f"{words}; of each the lowest epoch counts, then the lowest attempt, then the first journal by name"

    def json(self) -> dict[str, JSON]:
        """The report under the names that people know, such as `pass@4`."""
        plain: dict[str, JSON] = msgspec.to_builtins(self, str_keys=True)
        named = {name: one.json() for name, one in self.environments.items()}
        continuity = {name: one.json() for name, one in self.continuity.items()}
        return plain | {"overall": self.overall.json(), "environments": named, "continuity": continuity}


class Reading:
    """A run as it was read: what was asked, what came of it, and why the rest is missing."""

    def __init__(self, runs: Sequence[str | Path]) -> None:
        try:
            self._read(runs)
        except BookError:  # a line whose task or plan was written while we read; a second look says if it is more
            self._read(runs)

    def _read(self, runs: Sequence[str | Path]) -> None:
        books = open_shards(runs)
        for book in books:
            book.check_tasks()
        self._take(books, Tally, Failed)

    @classmethod
    def of(cls, book: Book, tally: Callable[[Sequence[Book]], Tally], failed: FailureReader) -> Reading:
        """A book that is held open, counted from what was read of it."""
        made = cls.__new__(cls)
        made._take([book], tally, failed)
        return made

    def _take(self, books: list[Book], tally: Callable[[Sequence[Book]], Tally], failed: FailureReader) -> None:
        self.books, self.book, self._failed = books, books[0], failed
        self.live = any(map(at_work, self.books))
        self.tally = tally(self.books)
        self.names = list(self.book.manifest.environments)
        self.envs = environments_of(self.book, self.names)
        self.asked = asked_of(self.book)
        self.failed: list[dict[str, int]] = [{} for _ in self.names]
        self.failed_by_task: dict[int, int] = {}
        self.missing: list[tuple[str, int, str]] = []
        if len(self.tally.columns) < self.asked.sum():
            self._explain()

    def _explain(self) -> None:
        why = self._failures()
        for row, sample in self.tally.missing():
            if not why and len(self.missing) >= MISSING_KEPT:
                return
            task = self.book.tasks.task(row).id
            failure = why.get((task, sample))
            if failure:
                self._count(row, failure)
            if len(self.missing) < MISSING_KEPT:
                self.missing.append((task, sample, f"{failure.kind}: {failure.message}" if failure else "pending"))

    def _failures(self) -> dict[tuple[str, int], Failure]:
        """Why rollouts failed; where directories say different things, not whichever is read last."""
        why: dict[tuple[str, int], Failure] = {}
        for book in self.books:
            for key, failure in {(mark.task, mark.sample): mark.failure for mark in self._failed(book)}.items():
                why[key] = min(failure, why.get(key, failure), key=lambda each: (each.kind, each.message))
        return why

    def _count(self, row: int, failure: Failure) -> None:
        kinds = self.failed[int(self.envs[row])]
        kinds[failure.kind] = kinds.get(failure.kind, 0) + 1
        self.failed_by_task[row] = self.failed_by_task.get(row, 0) + 1

    def columns(self, env: int) -> Columns:
        """The scored rollouts of one environment."""
        if len(self.names) == 1:
            return self.tally.columns
        return self.tally.columns.where(self.envs[self.tally.columns.task] == env)

    def metrics(self, env: int, ks: Sequence[int] | None, threshold: float) -> Metrics:
        """The numbers of one environment."""
        mine = self.envs == env
        return metrics(
            self.names[env],
            self.columns(env),
            self.tally.parts.texts,
            requested=int(self.asked[mine].sum()),
            failed=self.failed[env],
            ks=ks,
            tasks=int(mine.sum()),
            threshold=threshold,
        )

    def overall(self, ks: Sequence[int] | None, threshold: float) -> Metrics:
        """The numbers of all environments together."""
        return metrics(
            "all",
            self.tally.columns,
            self.tally.parts.texts,
            requested=int(self.asked.sum()),
            failed=total(self.failed),
            ks=ks,
            tasks=len(self.asked),
            threshold=threshold,
            groups=self.groups,
        )

    @property
    def groups(self) -> Ints | None:
        """The environment of every task, where there are several."""
        return self.envs if len(self.names) > 1 else None


def at_work(book: Book) -> bool:
    """Whether a worker is at the book just now."""
    watch = Watch(book.path)
    return any(not watch.gone(name, presence) for name, presence in read_presences(book.path).items())


def total(several: Iterable[dict[str, int]]) -> dict[str, int]:
    """Counts by kind, added up."""
    counts: dict[str, int] = {}
    for each in several:
        for kind, count in each.items():
            counts[kind] = counts.get(kind, 0) + count
    return counts


def environments_of(book: Book, names: Sequence[str]) -> Ints:
    """The number of every task's environment."""
    if len(names) == 1:
        return np.zeros(len(book.tasks), np.int64)
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[task.env] for task in book.tasks], np.int64)


def asked_of(book: Book) -> Ints:
    """How many rollouts of every task were asked for."""
    asked = np.zeros(len(book.tasks), np.int64)
    for part in book.plan.parts:
        asked[part.tasks[0] : part.tasks[1]] += part.samples[1] - part.samples[0]
    return asked


def report(run: str | Path, *, write: bool = True, ks: Sequence[int] | None = None, threshold: float = PASS) -> Report:
    """Count and measure a book; `write` keeps the result as metrics.json."""
    made = report_of(Reading([run]), ks, threshold)
    if write:
        keep(made)
    return made


def report_of(read: Reading, ks: Sequence[int] | None = None, threshold: float = PASS, *, forks: bool = True) -> Report:
    """The numbers of a run that was read. `forks` reads the journals of conversations once more."""
    each = {name: read.metrics(env, ks, threshold) for env, name in enumerate(read.names)}
    overall = read.overall(ks, threshold) if len(each) != 1 else next(iter(each.values()))
    manifest = read.book.manifest
    return Report(
        run=manifest.run,
        path=str(read.book.path),
        model=manifest.model.name,
        scripted=manifest.model.kind == "scripted",
        live=read.live,
        requested=overall.requested,
        scored=overall.scored,
        failed=overall.failed,
        pending=overall.pending,
        dropped=read.tally.dropped,
        overall=overall,
        environments=each,
        missing=read.missing,
        merged=[str(book.path) for book in read.books[1:]],
        disagreeing=read.tally.disagreeing,
        kept_from=manifest.parent if manifest.mixed else "",
        continuity=continuity(read.books) if forks and overall.turns > overall.scored else {},
    )


def keep(made: Report) -> Path:
    """Write a report down in its run; one of several directories does not replace what is said of one."""
    path = Path(made.path) / ("metrics.merged.json" if made.merged else "metrics.json")
    write_whole(path, pretty(made.json()))
    return path
