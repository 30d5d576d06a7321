"""Taking rollouts out of a book: whole, as Gym's rows, or as conversations to fine-tune on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.durable import write_aside
from rollbook.book.rollouts import rollouts
from rollbook.collect.gym import gym_row
from rollbook.core.json import JSON, to_line
from rollbook.core.rollout import Rollout
from rollbook.errors import UsageError

FORMATS = ("jsonl", "parquet", "gym", "sft")
BATCH = 1000


def facts(rollout: Rollout) -> dict[str, JSON]:
    """What a filter may ask of a rollout; its parts go by their own names."""
    score = rollout.score
    assert score is not None
    usage = rollout.usage
    return {
        **score.parts,
        "reward": score.reward,
        "answer": score.answer,
        "task": rollout.task.id,
        "sample": rollout.sample,
        "env": rollout.task.env,
        "turns": len(rollout.turns),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "truncated": rollout.truncated,
        "seconds": rollout.timing.seconds,
    }


def whole(rollout: Rollout, row: int, model: str) -> dict[str, JSON]:
    """Everything about a rollout in one flat row, its task and its exact tokens included."""
    task = rollout.task
    tokens = [msgspec.to_builtins(turn) for turn in rollout.turns]
    return {
        **facts(rollout),
        "seed": rollout.seed,
        "parts": rollout.score.parts if rollout.score else {},
        "info": rollout.score.info if rollout.score else {},
        "expected": task.answer,
        "fields": task.fields,
        "messages": msgspec.to_builtins(rollout.messages),
        "outcome": rollout.outcome,
        "turns": tokens,
        "model": model,
    }


def sft_row(rollout: Rollout, row: int, model: str) -> dict[str, JSON]:
    """A conversation to fine-tune on, and where it comes from."""
    return {
        "messages": msgspec.to_builtins(rollout.messages),
        "task": rollout.task.id,
        "sample": rollout.sample,
        "reward": rollout.reward,
    }


SHAPES: dict[str, Callable[[Rollout, int, str], dict[str, JSON]]] = {
    "jsonl": whole,
    "parquet": whole,
    "gym": gym_row,
    "sft": sft_row,
}


def rows(book: Book, shape: str, keep: Callable[[dict[str, JSON]], bool]) -> Iterator[dict[str, JSON]]:
    """The rows of every scored rollout that passes."""
    make, name = SHAPES[shape], book.manifest.model.name
    for rollout in rollouts(book, tokens=shape != "sft"):
        if keep(facts(rollout)):
            yield make(rollout, book.tasks.rows[rollout.task.id], name)


def export(run: str | Path, shape: str, out: str | Path, keep: Callable[[dict[str, JSON]], bool]) -> int:
    """Write a run's scored rollouts; returns how many. The file is there whole or not at all."""
    if shape not in FORMATS:
        raise UsageError(f"--format {shape}: known are {', '.join(FORMATS)}")
    target = Path(out)
    if target.exists():
        raise UsageError(f"{target} exists already: choose another --out, or delete it")
    found = rows(Book(run), shape, keep)
    return write_parquet(target, found) if shape == "parquet" else write_lines(target, found)


def write_lines(target: Path, found: Iterator[dict[str, JSON]]) -> int:
    """One JSON object a line."""
    aside = write_aside(target, b"")
    count = 0
    with open(aside, "wb") as file:
        for count, row in enumerate(found, start=1):  # noqa: B007
            file.write(to_line(row))
    aside.rename(target)
    return count


def write_parquet(target: Path, found: Iterator[dict[str, JSON]]) -> int:
    """The same as Parquet; what has no fixed shape (fields, info, outcome, messages, turns) is kept as JSON text."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError("--format parquet needs pyarrow: pip install 'rollbook[parquet]'") from None
    flat = [_flat(row) for row in found]
    if not flat:
        raise UsageError("nothing passes: there is no rollout to write")
    columns = {name: [row.get(name) for row in flat] for name in sorted({n for row in flat for n in row})}
    aside = write_aside(target, b"")
    pyarrow.parquet.write_table(pyarrow.table(columns), aside)
    aside.rename(target)
    return len(flat)


def _flat(row: dict[str, JSON]) -> dict[str, JSON]:
    plain = (str, int, float, bool, type(None))
    return {k: v if isinstance(v, plain) else msgspec.json.encode(v).decode() for k, v in row.items()}
