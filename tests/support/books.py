"""Small books made in tests: a plan of sums, and rollouts to mark in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from rollbook.book import Book, BookDraft
from rollbook.core import (
    SCHEMA_VERSION,
    EnvironmentSpec,
    Failure,
    Limits,
    Manifest,
    Message,
    ModelSpec,
    Rollout,
    Round,
    Sampling,
    Score,
    Settings,
    Task,
    Timing,
    Turn,
    add_crc,
    derive_seed,
    encode,
    encode_record,
    make_part,
)
from rollbook.errors import RolloutFailed

ENV = "Sums"


ASKING = "What is {i} + {i}?"


def make_book(
    path: Path, tasks: int = 4, samples: int = 2, workers: int = 1, asking: str = ASKING, odd: int | None = None
) -> Book:
    """A planned book of sums; the odd one, or all of them, are asked in other words."""
    spec = EnvironmentSpec("sums.py:Sums", "sums:Sums")
    manifest = Manifest(
        SCHEMA_VERSION, "f00d", 1.0, {ENV: spec}, ModelSpec("toy"), Sampling(), samples, 0, Limits(), {"rollbook": "0"}
    )
    with BookDraft(path) as draft:
        words = [asking if odd is None or i == odd else ASKING for i in range(tasks)]
        given = (Task(id=f"t{i}", prompt=words[i].format(i=i), answer=str(2 * i)) for i in range(tasks))
        count = draft.add_tasks(given, ENV)
        return draft.finish(manifest, [make_part((0, count), (0, samples), workers)])


def open_round(book: Book, retry: list[str] | None = None) -> Round:
    """A new round of a book."""
    return book.open_round(Settings(retry=["infra"] if retry is None else retry))


def played(book: Book, row: int, sample: int, *, tokens: bool = False, round_number: int = 1) -> Rollout:
    """A rollout that was answered but not yet judged."""
    task = book.tasks.read(row)
    ids = ([1, 2, row], [3, 4 + sample], [-0.5, -0.25]) if tokens else (None, None, None)
    return Rollout(
        task=task,
        sample=sample,
        seed=derive_seed(0, task.id, sample),
        round=round_number,
        messages=[*task.messages, Message("assistant", str(task.answer))],
        turns=[Turn(*ids, 3, 2)],
        timing=Timing(1.0, 0.5, 0.4, 0.0, 0.1),
    )


def scored(book: Book, row: int, sample: int, reward: float = 1.0, **more: object) -> Rollout:
    """A rollout with a score."""
    rollout = played(book, row, sample, **more)  # type: ignore[arg-type]
    rollout.score = Score(reward, answer=str(book.tasks.read(row).answer))
    return rollout


def failed(book: Book, row: int, sample: int, kind: str = "model_timeout", **more: object) -> Rollout:
    """A rollout that failed."""
    rollout = played(book, row, sample, **more)  # type: ignore[arg-type]
    rollout.failure = Failure.from_error(RolloutFailed(kind, "test", "as asked"))
    return rollout


def encode_journal_line(line: msgspec.Struct) -> bytes:
    """A journal line as a worker writes it: with its checksum."""
    return add_crc(encode(line)) + b"\n"


def edit_record(path: Path, **changes: object) -> None:
    """Change fields of a JSON file, as another program would have written it: with the right checksum.

    It becomes a file of its own: a lease shares its content with others.
    """
    value = json.loads(path.read_bytes())
    value.pop("crc", None)
    path.unlink()
    path.write_bytes(encode_record(value | changes))


def edit_journal(path: Path, old: str, new: str, count: int = 0) -> int:
    """Replace what a pattern matches in the lines of a journal, as another program would have written them: with right
    checksums. Return how many lines were changed; `count` bounds them, 0 is all."""
    changed = 0
    lines = []
    for line in path.read_text().splitlines():
        body = re.sub(r',"crc":"[0-9a-f]{8}"}$', "}", line)
        edited = re.sub(old, new, body) if not count or changed < count else body
        changed += edited != body
        lines.append(add_crc(edited.encode()) + b"\n")
    path.write_bytes(b"".join(lines))
    return changed
