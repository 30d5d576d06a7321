"""Export a book as the files that NeMo Gym's collector writes, so that `gym eval profile` and similar tools read them.

All files are in the folder of the rollouts and named after them. What Gym has no field for (seeds, latencies, names) is
under `rollbook`, so that nothing is lost when a book is exported and imported again. A line that Gym wrote comes back
as it was: the import stores with each rollout what this export would write differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rollbook.book import Book, LineReader, iterate_parts, list_journals, read_turns, rollouts
from rollbook.core import JSON, FailedLine, Rollout, Task, Turn, encode, has_references
from rollbook.errors import UsageError
from rollbook.gym.metrics import aggregate_metrics
from rollbook.gym.responses import make_rollout_response
from rollbook.gym.rows import (
    AGENT_REF,
    EXTRACTED_ANSWER,
    ROLLBOOK_KEY,
    ROLLOUT_INDEX,
    TASK_INDEX,
    is_index,
    make_failed_row,
    make_row,
    make_scored_row,
)
from rollbook.gym.server.http_app import make_slug
from rollbook.models import CREATE_PARAMS, make_sampling_params, make_usage
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


IMPORTED_PREFIX = "imported "
"""How the spec of an environment begins whose rollouts were imported."""

IMPORTED_LINE = "gym_line"
"""The key of an outcome that holds what is different in the line that Gym wrote."""

TASK_RECORD = ("task", "env", "native")
"""What rows say of their task under `rollbook`. `native`: the row was made from a task of an environment of ours."""

_TURN_RECORD = ("prompt_tokens", "completion_tokens", "finish_reason", "seconds", "model_version")


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
                task = self._show_media(self._book.tasks.read(row))
                base = {**self._task_row(task), TASK_INDEX: self._task_index(task)}
                yield from ({**base, ROLLOUT_INDEX: sample} for sample in samples)

    def _show_media(self, task: Task) -> Task:
        """Return a task with the data of its images and sounds in it, which Gym has no other place for."""
        if not has_references(task.messages):
            return task
        messages = list(self._book.media.expand(task.messages))
        return Task.from_line(msgspec.structs.replace(task.line(), messages=messages))

    def scored_rows(self, rollouts_seen: CountedRollouts, keep: Expression | None) -> Iterator[Row]:
        """Yield the scored rollouts in the form of Gym's servers."""
        for stored in rollouts_seen:
            messages = list(self._book.media.expand(stored.messages))
            rollout = msgspec.structs.replace(stored, messages=messages, task=self._show_media(stored.task))
            if keep is None or keep.matches(dict.fromkeys(keep.names) | rollout_facts(rollout)):
                row = self.scored_row(rollout)
                self._metric_rows.setdefault(row[AGENT_REF]["name"], []).append(select_numbers(row))
                yield row

    def scored_row(self, rollout: Rollout) -> Row:
        """Return the row of a scored rollout; one that Gym wrote comes back as Gym wrote it."""
        assert rollout.score
        outcome = rollout.outcome
        line = outcome.get(IMPORTED_LINE) if isinstance(outcome, dict) else None
        body = self._rollout_row(rollout)
        record = body[ROLLBOOK_KEY]
        if CREATE_PARAMS in rollout.task.fields and not record.get("native"):  # where a server of Gym had put them
            body = {**rollout.score.info, **body}
        row = make_scored_row(body, rollout.score, None if line else outcome)
        row[ROLLBOOK_KEY] |= record
        return apply_difference(row, line) if line else row

    def failure_rows(self) -> Iterator[Row]:
        """Yield every failed attempt."""
        reader = LineReader(FailedLine, self._book.manifest.schema)
        for path in list_journals(self._book.path, failures=True):
            for _, line in reader.read(path):
                rollout = line.to_rollout(self._book.tasks.read(self._book.tasks.rows[line.task]))
                rollout.turns = read_turns(path, line.turns)
                body = self._rollout_row(rollout)
                body[ROLLBOOK_KEY] |= {"failure": msgspec.to_builtins(line.failure)}
                yield make_failed_row(body, line.failure.kind, f"{line.failure.where}: {line.failure.message}")

    def metrics(self) -> list[Row]:
        """Return the statistics of each agent over the rollouts that were written."""
        return [
            {AGENT_REF: {"name": name}, **_order_metrics(aggregate_metrics(rows))}
            for name, rows in self._metric_rows.items()
        ]

    def _rollout_row(self, rollout: Rollout) -> Row:
        row = self._task_row(rollout.task)
        # Released versions of Gym refuse a usage without counted details. Its statistics read the counts of a
        # usage and those at the top of a row alike, so they are there.
        usage = make_usage(rollout.usage)
        counts = {name: value for name, value in usage.items() if isinstance(value, int)}
        return {
            **counts,
            **row,
            TASK_INDEX: self._task_index(rollout.task),
            ROLLOUT_INDEX: rollout.sample,
            "response": {**make_rollout_response(rollout, self._model), "usage": None},
            ROLLBOOK_KEY: {**row.get(ROLLBOOK_KEY, {}), **make_record(rollout)},
        }

    def _is_imported(self, task: Task) -> bool:
        return self._book.manifest.environments[task.env].spec.startswith(IMPORTED_PREFIX)

    def _task_index(self, task: Task) -> int:
        """Return the index of a task: Gym's own if Gym collected it, else its position in the book."""
        index = task.fields.get(TASK_INDEX) if self._is_imported(task) else None
        return index if is_index(index) else self._book.tasks.rows[task.id]

    def _task_row(self, task: Task) -> Row:
        """Return a task as a row, with the sampling that was used, and the name of its agent."""
        if self._is_imported(task):
            return {AGENT_REF: {"name": task.env}, **task.fields}
        spec, native = self._book.manifest.environments[task.env], CREATE_PARAMS not in task.fields
        row = make_row(task, spec.tools) if native else dict(task.fields)
        sampling = make_sampling_params(spec.terms.sampling if spec.terms else self._book.manifest.sampling)
        return {
            **row,
            CREATE_PARAMS: {**row[CREATE_PARAMS], **sampling},
            # the name that `rollbook gym-config` gives to the agent of an environment
            AGENT_REF: row.get(AGENT_REF) or {"name": f"{make_slug(task.env)}_agent"},
            ROLLBOOK_KEY: {"task": task.id, "env": task.env, **({"native": True} if native else {})},
        }


def make_record(rollout: Rollout) -> Row:
    """Return what Gym has no field for: seed, attempt, latencies, and the counts of each model call."""
    return {
        "seed": rollout.seed,
        "attempt": rollout.attempt,
        "timing": msgspec.to_builtins(rollout.timing),
        "turns": [{name: getattr(turn, name) for name in _TURN_RECORD} for turn in rollout.turns],
    }


def restore_turns(turns: Sequence[Turn], record: JSON) -> list[Turn]:
    """Return turns that were read from a response, with the counts and latencies that were exported with it."""
    try:
        known = msgspec.convert(record, list[Turn])
    except msgspec.ValidationError:
        known = []
    if len(known) != len(turns):
        return list(turns)
    return [
        msgspec.structs.replace(turn, **{name: getattr(fields, name) for name in _TURN_RECORD})
        for turn, fields in zip(turns, known, strict=True)
    ]


def find_difference(made: JSON, original: JSON) -> JSON:
    """Return what turns `made` into `original`, for `apply_difference`; None if they are equal.

    Fields that Gym's own tools need are not removed where a line lacks them.
    """
    if isinstance(made, dict) and isinstance(original, dict):
        fields = {name: find_difference(made.get(name, _MISSING), value) for name, value in original.items()}
        changed = {name: difference for name, difference in fields.items() if difference is not None}
        removed = [name for name in made if name not in original and name not in (TASK_INDEX, ROLLOUT_INDEX, AGENT_REF)]
        return {"fields": changed, "removed": removed} if changed or removed else None
    if isinstance(made, list) and isinstance(original, list) and len(made) == len(original):
        items = {str(n): find_difference(*pair) for n, pair in enumerate(zip(made, original, strict=True))}
        changed = {number: difference for number, difference in items.items() if difference is not None}
        return {"items": changed} if changed else None
    return None if made == original and type(made) is type(original) else {"value": original}


def apply_difference(made: JSON, difference: JSON) -> JSON:
    """Return the original that `find_difference` compared with `made`."""
    if difference is None:
        return made
    if "value" in difference:
        return difference["value"]
    if "items" in difference:
        return [apply_difference(item, difference["items"].get(str(number))) for number, item in enumerate(made)]
    kept = {name: value for name, value in made.items() if name not in difference["removed"]}
    return {**kept, **{name: apply_difference(made.get(name), more) for name, more in difference["fields"].items()}}


_MISSING = object()


def select_numbers(row: Row) -> Row:
    """Return the fields of a row that statistics need."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {**numbers, EXTRACTED_ANSWER: row.get(EXTRACTED_ANSWER), "response": {"usage": row["response"]["usage"]}}


def _order_metrics(metrics: Row) -> Row:
    return {name: metrics[name] for name in ("agent_metrics", "key_metrics", "group_level_metrics")}
