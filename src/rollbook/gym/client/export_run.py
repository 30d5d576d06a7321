"""Export a book as the files that NeMo Gym's collector writes, so that `gym eval profile` and similar tools read them.

All files are in the folder of the rollouts and named after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollbook.book import Book, LineReader, iterate_parts, list_journals, read_turns, rollouts
from rollbook.core import JSON, FailedLine, Rollout, Task, encode
from rollbook.errors import UsageError
from rollbook.gym.metrics import aggregate_metrics
from rollbook.gym.responses import make_rollout_response
from rollbook.gym.rows import (
    AGENT_REF,
    EXTRACTED_ANSWER,
    ROLLBOOK_KEY,
    ROLLOUT_INDEX,
    TASK_INDEX,
    make_failed_row,
    make_row,
    make_scored_row,
)
from rollbook.models import CREATE_PARAMS, make_sampling_params
from rollbook.reports import (
    CountedRollouts,
    ExportCounts,
    check_filter_names,
    rollout_facts,
    write_atomically,
    write_lines_atomically,
)
from rollbook.stats import Expression


class CollectionFiles:
    """The paths of one collection's files, derived from the path of its rollouts.

    `inputs` has one row for each requested rollout, `failures` one for each failed attempt, `metrics` the statistics of
    each agent.
    """

    def __init__(self, rollouts: Path) -> None:
        self.rollouts = rollouts
        self.inputs = rollouts.with_name(f"{rollouts.stem}_materialized_inputs.jsonl")
        self.failures = rollouts.with_name(f"{rollouts.stem}_failures.jsonl")
        self.metrics = rollouts.with_name(f"{rollouts.stem}_aggregate_metrics.json")
        self.all = (self.inputs, self.failures, self.metrics, self.rollouts)


Row = dict[str, JSON]


def export_gym(run: str | Path, out: Path, keep: Expression | None = None) -> ExportCounts:
    """Write a run's rollouts to `out`, and inputs, failures and metrics next to it; each file is complete or absent."""
    files = CollectionFiles(out)
    existing = next((path for path in files.all if path.exists()), None)
    if existing is not None:
        raise UsageError(f"{existing} exists already: choose another --out, or delete it")
    book = Book(run)
    book.check_tasks()
    if keep is not None:
        check_filter_names(book, keep)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {out}: cannot be written: {error.strerror}") from None
    export = GymExport(book)
    counted = CountedRollouts(rollouts(book, tokens=True))
    write_lines_atomically(files.inputs, map(encode, export.input_rows()))
    write_lines_atomically(files.failures, map(encode, export.failure_rows()))
    written = write_lines_atomically(out, map(encode, export.scored_rows(counted, keep)))
    metrics = msgspec.json.format(encode(export.metrics()), indent=2)
    write_atomically(files.metrics, lambda aside: aside.write_bytes(metrics))
    return ExportCounts(written, book.plan.requested - counted.count, counted.count - written)


class GymExport:
    """Makes the rows of one book, and collects the numbers for its metrics."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._model = book.manifest.model.name
        self._metric_rows: dict[str, list[Row]] = {}

    def input_rows(self) -> Iterator[Row]:
        """Yield one row per requested rollout."""
        for rows, samples, _, _ in iterate_parts(self._book):
            for row in rows:
                base = self._task_row(self._book.tasks.read(row))
                yield from ({**base, TASK_INDEX: row, ROLLOUT_INDEX: sample} for sample in samples)

    def scored_rows(self, rollouts_seen: CountedRollouts, keep: Expression | None) -> Iterator[Row]:
        """Yield the scored rollouts in the form of Gym's servers."""
        for rollout in rollouts_seen:
            if keep is None or keep.matches(dict.fromkeys(keep.names) | rollout_facts(rollout)):
                yield self._scored_row(rollout)

    def _scored_row(self, rollout: Rollout) -> Row:
        assert rollout.score
        body = self._rollout_row(rollout)
        if CREATE_PARAMS in rollout.task.fields:  # the fields that a server of Gym added, where it had put them
            body = {**rollout.score.info, **body}
        row = make_scored_row(body, rollout.score, rollout.outcome)
        row[ROLLBOOK_KEY] |= {"task": rollout.task.id, "seed": rollout.seed}
        self._metric_rows.setdefault(row[AGENT_REF]["name"], []).append(select_numbers(row))
        return row

    def failure_rows(self) -> Iterator[Row]:
        """Yield every failed attempt."""
        reader = LineReader(FailedLine)
        for path in list_journals(self._book.path, failures=True):
            for _, line in reader.read(path):
                rollout = line.to_rollout(self._book.tasks.read(self._book.tasks.rows[line.task]))
                rollout.turns = read_turns(path, line.turns)
                yield make_failed_row(
                    self._rollout_row(rollout), line.failure.kind, f"{line.failure.where}: {line.failure.message}"
                )

    def metrics(self) -> list[Row]:
        """Return the statistics of each agent over the rollouts that were written."""
        return [
            {AGENT_REF: {"name": name}, **_order_metrics(aggregate_metrics(rows))}
            for name, rows in self._metric_rows.items()
        ]

    def _rollout_row(self, rollout: Rollout) -> Row:
        indices = {TASK_INDEX: self._book.tasks.rows[rollout.task.id], ROLLOUT_INDEX: rollout.sample}
        return {**self._task_row(rollout.task), **indices, "response": make_rollout_response(rollout, self._model)}

    def _task_row(self, task: Task) -> Row:
        """Return a task as a row, with the sampling that was used, and the name of its agent."""
        spec = self._book.manifest.environments[task.env]
        row = dict(task.fields) if CREATE_PARAMS in task.fields else make_row(task, spec.tools)
        row[CREATE_PARAMS] = {
            **row[CREATE_PARAMS],
            **make_sampling_params(spec.terms.sampling if spec.terms else self._book.manifest.sampling),
        }
        return {**row, AGENT_REF: row.get(AGENT_REF) or {"name": task.env}}


def select_numbers(row: Row) -> Row:
    """Return the fields of a row that statistics need."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {**numbers, EXTRACTED_ANSWER: row.get(EXTRACTED_ANSWER), "response": {"usage": row["response"]["usage"]}}


def _order_metrics(metrics: Row) -> Row:
    return {name: metrics[name] for name in ("agent_metrics", "key_metrics", "group_level_metrics")}
