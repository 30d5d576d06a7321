"""The numbers of a book, from its files in one streaming pass; nothing is averaged that was not scored."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.durable import write_whole
from rollbook.book.marks import Failed, Scored
from rollbook.core.json import JSON, pretty
from rollbook.core.rollout import Timing, Usage
from rollbook.stats.summary import Metrics, Tally

MISSING_KEPT = 1000
PASS = 1.0


class _Turn(msgspec.Struct, frozen=True):
    finish_reason: str


class _Line(msgspec.Struct, frozen=True):
    """What of a scored line the numbers need."""

    task: str
    sample: int
    attempt: int
    env: str
    reward: float
    answer: str | None
    turns: list[_Turn]
    usage: Usage
    timing: Timing

    @property
    def truncated(self) -> bool:
        """Whether the last turn was cut short."""
        return bool(self.turns) and self.turns[-1].finish_reason in ("length", "context_length")


class Report(msgspec.Struct, frozen=True):
    """A run's numbers: requested = scored + failed + pending, for every environment and over all."""

    run: str
    path: str
    model: str
    scripted: bool
    requested: int
    scored: int
    failed: dict[str, int]
    pending: int
    dropped: int
    environments: dict[str, Metrics]
    missing: list[tuple[str, int, str]]

    def json(self) -> dict[str, JSON]:
        """The report under the names that people know, such as `pass@4`."""
        plain: dict[str, JSON] = msgspec.to_builtins(self, str_keys=True)
        return plain | {"environments": {name: one.json() for name, one in self.environments.items()}}


def report(run: str | Path, *, write: bool = True) -> Report:
    """Count and measure a book; `write` keeps the result as metrics.json."""
    book = Book(run)
    tallies = {name: Tally(name) for name in book.manifest.environments}
    scored = Scored(book, _Line)
    for row, _, line in scored:
        _tell(tallies[line.env], row, line)
    why = {(mark.task, mark.sample): mark.failure for mark in Failed(book)}
    tasks, requested = _asked(book)
    failed: dict[str, dict[str, int]] = {name: {} for name in tallies}
    missing: list[tuple[str, int, str]] = []
    for row, sample in scored.missing():
        task = book.tasks.task(row)
        failure = why.get((task.id, sample))
        if failure:
            failed[task.env][failure.kind] = failed[task.env].get(failure.kind, 0) + 1
        if len(missing) < MISSING_KEPT:
            missing.append((task.id, sample, f"{failure.kind}: {failure.message}" if failure else "pending"))
    metrics = {name: t.metrics(requested[name], failed[name], tasks=tasks[name]) for name, t in tallies.items()}
    made = _assemble(book, metrics, scored.dropped, missing)
    if write:
        keep(made)
    return made


def keep(made: Report) -> None:
    """Write a report down as its run's metrics.json."""
    write_whole(Path(made.path) / "metrics.json", pretty(made.json()))


def _tell(tally: Tally, row: int, line: _Line) -> None:
    tally.add(
        row,
        line.reward,
        passed=line.reward >= PASS,
        prompt_tokens=line.usage.prompt_tokens,
        completion_tokens=line.usage.completion_tokens,
        truncated=line.truncated,
        answered=line.answer is not None,
        seconds=line.timing.seconds,
    )


def _asked(book: Book) -> tuple[dict[str, int], dict[str, int]]:
    """How many tasks and how many rollouts each environment was asked for."""
    names = list(book.manifest.environments)
    if len(names) == 1:
        return {names[0]: len(book.tasks)}, {names[0]: book.plan.requested}
    tasks, rollouts = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for task in book.tasks:
        tasks[task.env] += 1
    for part in book.plan.parts:
        for row in range(*part.tasks):
            rollouts[book.tasks.task(row).env] += part.samples[1] - part.samples[0]
    return tasks, rollouts


def _assemble(book: Book, metrics: dict[str, Metrics], dropped: int, missing: list[tuple[str, int, str]]) -> Report:
    failed: dict[str, int] = {}
    for one in metrics.values():
        for kind, count in one.failed.items():
            failed[kind] = failed.get(kind, 0) + count
    scored = sum(one.scored for one in metrics.values())
    requested = book.plan.requested
    return Report(
        run=book.manifest.run,
        path=str(book.path),
        model=book.manifest.model.name,
        scripted=book.manifest.model.kind == "scripted",
        requested=requested,
        scored=scored,
        failed=failed,
        pending=requested - scored - sum(failed.values()),
        dropped=dropped,
        environments=metrics,
        missing=list(islice(missing, MISSING_KEPT)),
    )
