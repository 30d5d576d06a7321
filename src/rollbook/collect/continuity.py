"""How often later turns did not continue the tokens of those before: from the heads of the records in the sidecars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from rollbook.book.book import Book
from rollbook.book.marks import Scored
from rollbook.book.rollouts import sidecar_of, with_tokens
from rollbook.core.json import JSON
from rollbook.core.turn import TokenRef, TurnLine
from rollbook.errors import BookError, TokenError
from rollbook.tokens import merge
from rollbook.tokens.sidecar import HEAD_BYTES, read_head


class Continuity(msgspec.Struct, frozen=True):
    """Scored rollouts of several turns with token ids: their later turns, and those that began a sequence anew."""

    rollouts: int
    broken: int
    turns: int
    forks: int
    reasons: dict[str, int]

    @property
    def break_rate(self) -> float:
        """The share of later turns that did not continue."""
        return self.forks / self.turns

    def json(self) -> dict[str, JSON]:
        """The counts with the rate that follows from them."""
        return {"break_rate": self.break_rate, **msgspec.to_builtins(self)}


class _Line(msgspec.Struct, frozen=True, gc=False):
    task: str
    sample: int
    attempt: int
    env: str
    turns: list[TurnLine]


def continuity(books: Sequence[Book]) -> dict[str, Continuity]:
    """By environment; an environment none of whose rollouts has two turns with ids is not there."""
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for path, line in _lines(books):
        refs = [turn.tokens for turn in line.turns if turn.tokens is not None]
        if len(refs) < 2:
            continue
        forks = _forks(path, refs)
        counts.setdefault(line.env, Counter()).update(rollouts=1, broken=forks > 0, turns=len(refs) - 1, forks=forks)
        if forks:
            reasons.setdefault(line.env, Counter()).update(_reasons(path, line.turns))
    return {
        env: Continuity(reasons=dict(reasons.get(env, Counter()).most_common()), **count)
        for env, count in sorted(counts.items())
    }


def _lines(books: Sequence[Book]) -> Iterator[tuple[Path, _Line]]:
    """The scored rollouts that count, each once."""
    seen: set[tuple[str, int]] = set()
    for book in books:
        for _, path, line in Scored(book, _Line):
            if len(books) > 1:
                if (line.task, line.sample) in seen:
                    continue
                seen.add((line.task, line.sample))
            yield path, line


def _forks(journal: Path, refs: Sequence[TokenRef]) -> int:
    """How many turns share less with what was held than all of it: their heads say so, nothing is unpacked."""
    forks, held = 0, 0
    with open_sidecar(journal) as file:
        for number, ref in enumerate(refs):
            shared, rest, sampled = _head(file, ref.at)
            forks += number > 0 and shared < held
            held = shared + rest + sampled
    return forks


def _head(sidecar: BinaryIO, at: int) -> tuple[int, int, int]:
    sidecar.seek(at)
    try:
        return read_head(sidecar.read(HEAD_BYTES))
    except TokenError as error:
        raise BookError(f"{sidecar.name}, byte {at}: {error}; restore it from a copy of the run") from None


def open_sidecar(journal: Path) -> BinaryIO:
    """The file of a journal's token records."""
    path = sidecar_of(journal)
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise BookError(f"{path} is missing: restore it from a copy of the run") from None


def _reasons(journal: Path, turns: list[TurnLine]) -> list[str]:
    recorded = [turn for turn in turns if turn.tokens is not None]
    return [sequence.fork.reason for sequence in merge(with_tokens(journal, recorded)) if sequence.fork]
