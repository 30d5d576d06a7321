"""A book as the files that NeMo Gym's collector leaves, so that `gym eval profile` and its kin read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.marks import chunk_index, journal_files
from rollbook.book.rollouts import rollouts, with_tokens
from rollbook.book.segment import LineReader
from rollbook.collect.export import Exported, Seen, check_names, facts
from rollbook.collect.tablefile import write_whole, write_whole_lines
from rollbook.core.json import JSON, encode
from rollbook.core.line import FailedLine
from rollbook.core.manifest import Sampling
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.errors import UsageError
from rollbook.stats.expression import Expression
from rollbook.wire.gym.driving.files import Files
from rollbook.wire.gym.metrics import aggregate
from rollbook.wire.gym.params import KEY
from rollbook.wire.gym.response import rollout_response
from rollbook.wire.gym.row import AGENT, ROLLOUT_INDEX, TASK_INDEX, row_of
from rollbook.wire.gym.verdict import OURS, failed, scored

Row = dict[str, JSON]


def export_gym(run: str | Path, out: Path, keep: Expression | None = None) -> Exported:
    """Write a run's rollouts to `out`, and beside it inputs, failures and metrics; each file is whole or not there."""
    files = Files(out)
    taken = next((path for path in files.all if path.exists()), None)
    if taken is not None:
        raise UsageError(f"{taken} exists already: choose another --out, or delete it")
    book = Book(run)
    book.check_tasks()
    if keep is not None:
        check_names(book, keep)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {out}: cannot be written: {error.strerror}") from None
    writing = Writing(book)
    seen = Seen(rollouts(book, tokens=True))
    write_whole_lines(files.inputs, map(encode, writing.inputs()))
    write_whole_lines(files.failures, map(encode, writing.failures()))
    written = write_whole_lines(out, map(encode, writing.scored(seen, keep)))
    metrics = msgspec.json.format(encode(writing.metrics()), indent=2)
    write_whole(files.metrics, lambda aside: aside.write_bytes(metrics))
    return Exported(written, book.plan.requested - seen.count, seen.count - written)


class Writing:
    """Makes the rows of one book, and gathers for the metrics what they are made of."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._model = book.manifest.model.name
        self._counted: dict[str, list[Row]] = {}

    def inputs(self) -> Iterator[Row]:
        """What was asked for: every task as often as it was to be played."""
        for rows, samples, _, _ in chunk_index(self._book):
            for row in rows:
                made = self._row(self._book.tasks.task(row))
                yield from ({**made, TASK_INDEX: row, ROLLOUT_INDEX: sample} for sample in samples)

    def scored(self, found: Seen, keep: Expression | None) -> Iterator[Row]:
        """What was scored, as Gym's servers put it."""
        for rollout in found:
            if keep is None or keep.keeps(dict.fromkeys(keep.names) | facts(rollout)):
                yield self._scored(rollout)

    def _scored(self, rollout: Rollout) -> Row:
        assert rollout.score
        body = self._played(rollout)
        if KEY in rollout.task.fields:  # what a server of Gym added of its own, where it had put it
            body = {**rollout.score.info, **body}
        made = scored(body, rollout.score, rollout.outcome)
        made[OURS] |= {"task": rollout.task.id, "seed": rollout.seed}
        self._counted.setdefault(made[AGENT]["name"], []).append(numbers_of(made))
        return made

    def failures(self) -> Iterator[Row]:
        """Every attempt that failed."""
        reader = LineReader(FailedLine)
        for path in journal_files(self._book.path, failures=True):
            for _, line in reader.read(path):
                rollout = line.rollout(self._book.tasks.task(self._book.tasks.rows[line.task]))
                rollout.turns = with_tokens(path, line.turns)
                yield failed(self._played(rollout), line.failure.kind, f"{line.failure.where}: {line.failure.message}")

    def metrics(self) -> list[Row]:
        """The statistics of each agent over the rollouts that were written."""
        return [{AGENT: {"name": name}, **_ordered(aggregate(rows))} for name, rows in self._counted.items()]

    def _played(self, rollout: Rollout) -> Row:
        indices = {TASK_INDEX: self._book.tasks.rows[rollout.task.id], ROLLOUT_INDEX: rollout.sample}
        return {**self._row(rollout.task), **indices, "response": rollout_response(rollout, self._model)}

    def _row(self, task: Task) -> Row:
        """A task as a row, with the sampling that it was asked with, and the name of who played it."""
        spec = self._book.manifest.environments[task.env]
        row = dict(task.fields) if KEY in task.fields else row_of(task, spec.tools)
        row[KEY] = {**row[KEY], **_asked(spec.terms.sampling if spec.terms else self._book.manifest.sampling)}
        return {**row, AGENT: row.get(AGENT) or {"name": task.env}}


def _asked(sampling: Sampling) -> Row:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_output_tokens": sampling.max_tokens,
    }


def numbers_of(row: Row) -> Row:
    """The little of a row that statistics are made of."""
    few = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {**few, "extracted_answer": row.get("extracted_answer"), "response": {"usage": row["response"]["usage"]}}


def _ordered(found: Row) -> Row:
    return {name: found[name] for name in ("agent_metrics", "key_metrics", "group_level_metrics")}
