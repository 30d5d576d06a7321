"""Export rollouts from a book: whole rows, flat rows, or conversations to fine-tune on. Gym's files: `rollbook.gym`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from rollbook.book import Book, CountedLines, rollouts
from rollbook.core import JSON, Rollout, Score, encode
from rollbook.errors import UsageError
from rollbook.reports.table_files import (
    PART_PREFIX,
    ColumnKind,
    write_atomically,
    write_csv,
    write_lines_atomically,
    write_parquet,
)
from rollbook.stats import Expression

BATCH_ROWS = 1000
PASSING_FILTER = "reward >= 1"
"""The default filter of `sft`: fine-tuning uses what passed."""

INTEGERS = ("sample", "seed", "prompt_tokens", "completion_tokens")
FLOATS = ("reward", "seconds")
COLUMNS = (
    *("task", "sample", "env", "model", "seed", "reward", "parts", "answer", "expected", "prompt_tokens"),
    *("completion_tokens", "truncated", "seconds", "messages", "turns", "outcome", "info", "fields"),
)
COLUMN_KINDS: dict[str, ColumnKind] = {
    **dict.fromkeys(COLUMNS, "text"),
    **dict.fromkeys(INTEGERS, "integer"),
    **dict.fromkeys(FLOATS, "number"),
    "truncated": "boolean",
}
"""What a Parquet file holds; values without a fixed shape (messages, turns, fields, info) are JSON text."""


FACTS: dict[str, Callable[[Rollout, Score], JSON]] = {
    "reward": lambda rollout, score: score.reward,
    "answer": lambda rollout, score: score.answer,
    "task": lambda rollout, score: rollout.task.id,
    "sample": lambda rollout, score: rollout.sample,
    "env": lambda rollout, score: rollout.task.env,
    "turns": lambda rollout, score: len(rollout.turns),
    "prompt_tokens": lambda rollout, score: rollout.usage.prompt_tokens,
    "completion_tokens": lambda rollout, score: rollout.usage.completion_tokens,
    "truncated": lambda rollout, score: rollout.truncated,
    "seconds": lambda rollout, score: rollout.timing.seconds,
}


def rollout_facts(rollout: Rollout) -> dict[str, JSON]:
    """Return the values that a filter may use; reward parts have their own names unless those are taken."""
    score = rollout.score
    assert score is not None
    return {**score.parts, **{name: read(rollout, score) for name, read in FACTS.items()}}


def check_filter_names(book: Book, keep: Expression) -> None:
    """Refuse a filter with a name that no rollout has; a part that only some have is null for the others."""
    if not keep.names <= set(FACTS):
        keep.check_names({*FACTS, *read_part_names(book)})


def read_part_names(book: Book) -> list[str]:
    """Return the names of all reward parts of a run, sorted."""
    return sorted({name for _, _, line in CountedLines(book, PartsLine) for name in line.parts})


class PartsLine(msgspec.Struct, frozen=True):
    """A scored line, read for the names of its parts."""

    task: str
    sample: int
    attempt: int
    parts: dict[str, float]


def full_row(rollout: Rollout, row: int, model: str) -> dict[str, JSON]:
    """Return a rollout as one flat row, with its task and its exact tokens."""
    score, usage = rollout.score, rollout.usage
    assert score is not None
    return {
        "task": rollout.task.id,
        "sample": rollout.sample,
        "env": rollout.task.env,
        "model": model,
        "seed": rollout.seed,
        "reward": score.reward,
        "parts": score.parts,
        "answer": score.answer,
        "expected": rollout.task.answer,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "truncated": rollout.truncated,
        "seconds": rollout.timing.seconds,
        "messages": msgspec.to_builtins(rollout.messages),
        "turns": [msgspec.to_builtins(turn) for turn in rollout.turns],
        "outcome": rollout.outcome,
        "info": score.info,
        "fields": rollout.task.fields,
    }


FLAT_COLUMNS = (
    *("task", "sample", "env", "model", "seed", "reward", "answer", "expected", "prompt_tokens"),
    *("completion_tokens", "turns", "truncated", "seconds"),
)
"""The columns of CSV, before one for each reward part."""


def flat_row(rollout: Rollout, row: int, model: str) -> dict[str, JSON]:
    """Return a rollout as one row without its conversation; `turns` is their number."""
    assert rollout.score is not None
    whole = full_row(rollout, row, model)
    flat = {name: whole[name] for name in FLAT_COLUMNS} | {"turns": len(rollout.turns)}
    return flat | {PART_PREFIX + name: value for name, value in rollout.score.parts.items()}


def sft_row(rollout: Rollout, row: int, model: str) -> dict[str, JSON]:
    """Return a conversation to fine-tune on, with its task, sample and reward."""
    return {
        "messages": msgspec.to_builtins(rollout.messages),
        "task": rollout.task.id,
        "sample": rollout.sample,
        "reward": rollout.reward,
    }


ROW_MAKERS: dict[str, Callable[[Rollout, int, str], dict[str, JSON]]] = {
    "jsonl": full_row,
    "parquet": full_row,
    "csv": flat_row,
    "sft": sft_row,
}


class CountedRollouts:
    """An iterator over rollouts that counts them."""

    def __init__(self, rollouts: Iterator[Rollout]) -> None:
        self._rollouts, self.count = rollouts, 0

    def __iter__(self) -> Iterator[Rollout]:
        for rollout in self._rollouts:
            self.count += 1
            yield rollout


def make_rows(
    book: Book, shape: str, keep: Expression | None, selected: Iterable[Rollout]
) -> Iterator[dict[str, JSON]]:
    """Yield a row for every scored rollout that passes the filter, with the data of its images and sounds in it."""
    make, name = ROW_MAKERS[shape], book.manifest.model.name
    for rollout in selected:
        if keep is None or keep.matches(dict.fromkeys(keep.names) | rollout_facts(rollout)):
            shown = msgspec.structs.replace(rollout, messages=list(book.media.expand(rollout.messages)))
            yield make(shown, book.tasks.rows[rollout.task.id], name)


class ExportCounts(msgspec.Struct, frozen=True):
    """How many rollouts of a run were written, and how many were not: without a score, or removed by the filter."""

    written: int
    unscored: int
    filtered: int


def export_rollouts(run: str | Path, shape: str, out: Path, keep: Expression | None = None) -> ExportCounts:
    """Write a run's scored rollouts; `sft` writes those that pass by default. The file is complete or absent."""
    if shape not in ROW_MAKERS:
        raise UsageError(f"--format {shape}: known are {', '.join(ROW_MAKERS)}, gym")
    if out.exists():
        raise UsageError(f"{out} exists already: choose another --out, or delete it")
    book = Book(run)
    book.check_tasks()
    if keep is None and shape == "sft":
        keep = Expression(PASSING_FILTER)
    if keep is not None:
        check_filter_names(book, keep)
    seen = CountedRollouts(rollouts(book, tokens=shape in ("jsonl", "parquet")))
    rows = make_rows(book, shape, keep, seen)
    if shape == "csv":
        names = [*FLAT_COLUMNS, *(PART_PREFIX + name for name in read_part_names(book))]
        written = write_atomically(out, lambda aside: write_csv(aside, names, rows))
    elif shape == "parquet":
        written = write_atomically(
            out, lambda aside: write_parquet(aside, COLUMN_KINDS, rows, BATCH_ROWS, "--format parquet")
        )
    else:
        written = write_lines_atomically(out, map(encode, rows))
    return ExportCounts(written, book.plan.requested - seen.count, seen.count - written)
