"""Keys that several directories of one run have: which of their lines counts, whatever order they are given in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollbook.stats.columns import SILENT, Bools, Columns, Ints, merged
from rollbook.stats.estimators import Floats


@dataclass(frozen=True)
class Piece:
    """A journal's lines: which of them count in their own directory, their places in the plan, and their ranks."""

    columns: Columns
    chosen: Bools
    place: Ints
    epoch: Ints
    attempt: Ints
    journal: str


def count_once(pieces: Sequence[Piece], texts: Sequence[str]) -> int:
    """Leave one line of every key chosen: the lowest epoch's, then the lowest attempt's, as in a book.

    Among equals the name of the journal decides, and then what the line says, never the order of the directories.
    Gives the number of keys whose lines do not have the same reward and answer. `texts` are the answers' own.
    """
    keys = sum((len(piece.chosen) for piece in pieces), 0)
    chosen = np.concatenate([np.zeros(0, np.bool_), *(piece.chosen for piece in pieces)])
    place = np.concatenate([np.zeros(0, np.int64), *(piece.place for piece in pieces)])
    times = np.bincount(place[chosen], minlength=1)
    doubled = chosen & (times[np.where(chosen, place, 0)] > 1)
    if not doubled.any():
        return 0
    cuts = np.cumsum([len(piece.chosen) for piece in pieces])[:-1]
    some = [
        Piece(p.columns.where(mine), p.chosen, p.place[mine], p.epoch[mine], p.attempt[mine], p.journal)
        for p, mine in zip(pieces, np.split(doubled, cuts), strict=True)
    ]
    order, starts, disagreeing = _ranked(some, texts)
    lost = np.ones(keys, np.bool_)
    lost[np.flatnonzero(doubled)[order[starts]]] = False
    for piece, gone in zip(pieces, np.split(doubled & lost, cuts), strict=True):
        piece.chosen[gone] = False
    return disagreeing


def _ranked(pieces: Sequence[Piece], texts: Sequence[str]) -> tuple[Ints, Ints, int]:
    """The lines by key and rank, where in that order each key begins, and how many keys disagree."""
    held = merged([piece.columns for piece in pieces])
    answer = _by_text(held.answer, texts)
    place, epoch, attempt = (np.concatenate([getattr(p, n) for p in pieces]) for n in ("place", "epoch", "attempt"))
    names = sorted({piece.journal for piece in pieces})
    journal = np.repeat([names.index(piece.journal) for piece in pieces], [len(piece.place) for piece in pieces])
    said = (held.reward, answer, held.prompt_tokens, held.completion_tokens, held.turns, held.truncated, held.seconds)
    order = np.lexsort((_parts(held), *reversed(said), journal, attempt, epoch, place))
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    return order, starts, int((_differs(held.reward[order], starts) | _differs(answer[order], starts)).sum())


def _differs(values: Ints | Floats, starts: Ints) -> Bools:
    """For every key whether its lines have several values."""
    differs: Bools = np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts)
    return differs


def _by_text(numbers: Ints, texts: Sequence[str]) -> Ints:
    """Answers numbered by their texts in order: their own numbers tell in which order they were read."""
    met = np.unique(numbers)
    ranks = {number: rank for rank, number in enumerate(sorted(met.tolist(), key=lambda at: _text(at, texts)))}
    return np.array([ranks[number] for number in met.tolist()], np.int64)[np.searchsorted(met, numbers)]


def _text(number: int, texts: Sequence[str]) -> str:
    return "" if number == SILENT else texts[number]


def _parts(held: Columns) -> Floats:
    """The parts of every rollout in one number, the last thing that can tell two lines apart."""
    return np.bincount(held.parts.place, held.parts.value, minlength=len(held)).astype(np.float64, copy=False)
