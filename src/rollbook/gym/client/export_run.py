"""Export a book as the files that NeMo Gym's collector writes, so that `gym eval profile` and similar tools read them.

All files lie next to the rollouts and are named after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollbook.book import Book, LineReader, iterate_parts, list_journals, read_turns, rollouts
from rollbook.core import JSON, FailedLine, Rollout, Sampling, Task, encode
from rollbook.errors import UsageError
from rollbook.gym.metrics import aggregate_metrics
from rollbook.gym.rows import (
    AGENT_REF,
    ROLLBOOK_KEY,
    ROLLOUT_INDEX,
    TASK_INDEX,
    make_failed_row,
    make_row,
    make_scored_row,
)
from rollbook.models import CREATE_PARAMS, make_rollout_response
from rollbook.reports import (
    CountedRollouts,
    ExportCounts,
    check_filter_names,
    rollout_facts,
    write_atomically,
    write_lines_atomically,
)
from rollbook.stats import Expression


class CollectionFiles(msgspec.Struct, frozen=True):
    """Where the results of one collection lie; `rollouts` names them all."""

    rollouts: Path

    def _sibling(self, ending: str) -> Path:
        return self.rollouts.with_name(f"{self.rollouts.stem}_{ending}")

    @property
    def inputs(self) -> Path:
        """One row for each rollout that was asked for."""
        return self._sibling("materialized_inputs.jsonl")

    @property
    def failures(self) -> Path:
        """One row for each attempt that failed."""
        return self._sibling("failures.jsonl")

    @property
    def metrics(self) -> Path:
        """Statistics, for each agent."""
        return self._sibling("aggregate_metrics.json")

    @property
    def all(self) -> tuple[Path, ...]:
        """Every one of them."""
        return self.inputs, self.failures, self.metrics, self.rollouts


Row = dict[str, JSON]


def export_gym(run: str | Path, out: Path, keep: Expression | None = None) -> ExportCounts:
    """Write a run's rollouts to `out`, and beside it inputs, failures and metrics; each file is whole or not there."""
    files = CollectionFiles(out)
    taken = next((path for path in files.all if path.exists()), None)
    if taken is not None:
        raise UsageError(f"{taken} exists already: choose another --out, or delete it")
    book = Book(run)
    book.check_tasks()
    if keep is not None:
        check_filter_names(book, keep)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {out}: cannot be written: {error.strerror}") from None
    writing = GymExport(book)
    seen = CountedRollouts(rollouts(book, tokens=True))
    write_lines_atomically(files.inputs, map(encode, writing.input_rows()))
    write_lines_atomically(files.failures, map(encode, writing.failure_rows()))
    written = write_lines_atomically(out, map(encode, writing.scored_rows(seen, keep)))
    metrics = msgspec.json.format(encode(writing.metrics()), indent=2)
    write_atomically(files.metrics, lambda aside: aside.write_bytes(metrics))
    return ExportCounts(written, book.plan.requested - seen.count, seen.count - written)


class GymExport:
    """Makes the rows of one book, and gathers for the metrics what they are made of."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._model = book.manifest.model.name
        self._metric_rows: dict[str, list[Row]] = {}

    def input_rows(self) -> Iterator[Row]:
        """What was asked for: every task as often as it was to be played."""
        for rows, samples, _, _ in iterate_parts(self._book):
            for row in rows:
                made = self._task_row(self._book.tasks.read(row))
                yield from ({**made, TASK_INDEX: row, ROLLOUT_INDEX: sample} for sample in samples)

    def scored_rows(self, rollouts_seen: CountedRollouts, keep: Expression | None) -> Iterator[Row]:
        """What was scored, as Gym's servers put it."""
        for rollout in rollouts_seen:
            if keep is None or keep.matches(dict.fromkeys(keep.names) | rollout_facts(rollout)):
                yield self._scored_row(rollout)

    def _scored_row(self, rollout: Rollout) -> Row:
        assert rollout.score
        body = self._rollout_row(rollout)
        if CREATE_PARAMS in rollout.task.fields:  # what a server of Gym added of its own, where it had put it
            body = {**rollout.score.info, **body}
        made = make_scored_row(body, rollout.score, rollout.outcome)
        made[ROLLBOOK_KEY] |= {"task": rollout.task.id, "seed": rollout.seed}
        self._metric_rows.setdefault(made[AGENT_REF]["name"], []).append(select_numbers(made))
        return made

    def failure_rows(self) -> Iterator[Row]:
        """Every attempt that failed."""
        reader = LineReader(FailedLine)
        for path in list_journals(self._book.path, failures=True):
            for _, line in reader.read(path):
                rollout = line.to_rollout(self._book.tasks.read(self._book.tasks.rows[line.task]))
                rollout.turns = read_turns(path, line.turns)
                yield make_failed_row(
                    self._rollout_row(rollout), line.failure.kind, f"{line.failure.where}: {line.failure.message}"
                )

    def metrics(self) -> list[Row]:
        """The statistics of each agent over the rollouts that were written."""
        return [
            {AGENT_REF: {"name": name}, **_order_metrics(aggregate_metrics(rows))}
            for name, rows in self._metric_rows.items()
        ]

    def _rollout_row(self, rollout: Rollout) -> Row:
        indices = {TASK_INDEX: self._book.tasks.rows[rollout.task.id], ROLLOUT_INDEX: rollout.sample}
        return {**self._task_row(rollout.task), **indices, "response": make_rollout_response(rollout, self._model)}

    def _task_row(self, task: Task) -> Row:
        """A task as a row, with the sampling that it was asked with, and the name of who played it."""
        spec = self._book.manifest.environments[task.env]
        row = dict(task.fields) if CREATE_PARAMS in task.fields else make_row(task, spec.tools)
        row[CREATE_PARAMS] = {
            **row[CREATE_PARAMS],
            **_sampling_params(spec.terms.sampling if spec.terms else self._book.manifest.sampling),
        }
        return {**row, AGENT_REF: row.get(AGENT_REF) or {"name": task.env}}


def _sampling_params(sampling: Sampling) -> Row:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_output_tokens": sampling.max_tokens,
    }


def select_numbers(row: Row) -> Row:
    """The little of a row that statistics are made of."""
    few = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {**few, "extracted_answer": row.get("extracted_answer"), "response": {"usage": row["response"]["usage"]}}


def _order_metrics(found: Row) -> Row:
    return {name: found[name] for name in ("agent_metrics", "key_metrics", "group_level_metrics")}
