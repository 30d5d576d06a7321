"""Reading rollouts back whole: messages, turns, and where asked their exact tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.marks import Scored
from rollbook.core.line import ScoredLine
from rollbook.core.rollout import Rollout
from rollbook.core.turn import Turn, TurnLine
from rollbook.errors import BookError
from rollbook.tokens.sidecar import decode as decode_tokens


def rollouts(book: Book, *, tokens: bool = False) -> Iterator[Rollout]:
    """Every scored rollout that counts, in no order; with `tokens` its turns carry their ids and logprobs."""
    for row, path, line in Scored(book, ScoredLine):
        rollout = line.rollout(book.tasks.task(row))
        if tokens:
            rollout.turns = with_tokens(path, line.turns)
        yield rollout


def with_tokens(journal: Path, lines: list[TurnLine]) -> list[Turn]:
    """The turns of a line with the ids that lie in its segment's sidecar."""
    held: list[int] = []
    turns = []
    for line in lines:
        turn = line.turn()
        if line.tokens is not None:
            record = _record(sidecar_of(journal), line.tokens.at, line.tokens.size)
            prompt_ids, ids, logprobs = decode_tokens(record, held)
            turn = msgspec.structs.replace(turn, prompt_ids=prompt_ids, ids=ids, logprobs=logprobs)
            held = prompt_ids + ids
        turns.append(turn)
    return turns


def sidecar_of(journal: Path) -> Path:
    """The file that holds the ids of a journal's lines."""
    stem = journal.name.removesuffix(".jsonl").removesuffix(".failures")
    return journal.with_name(f"{stem}.tokens")


def _record(sidecar: Path, at: int, size: int) -> bytes:
    try:
        with open(sidecar, "rb") as file:
            file.seek(at)
            record = file.read(size)
    except FileNotFoundError:
        raise BookError(f"{sidecar} is missing: restore it from a copy of the run") from None
    if len(record) != size:
        raise BookError(f"{sidecar} ends before byte {at + size}: restore it from a copy of the run")
    return record
