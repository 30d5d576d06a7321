"""Which lines of a book count, a whole journal at a time: `LineRules` of `rollbook.book`, vectorised.

`LineSelector` decides within one run directory; `select_one_per_key` between several directories of one run,
independently of the order in which they are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollbook.book import Book, ContestedLines, LineRules, iterate_parts, unplanned_key_error
from rollbook.core import Extent
from rollbook.reports.journal_columns import JournalColumns
from rollbook.stats import NO_ANSWER, Bools, Columns, Floats, Ints, merge_columns

EMPTY: Ints = np.zeros(0, np.int64)
NO_TIMES: Floats = np.zeros(0)


class LineSelector:
    """Decides which lines of one book count, journal by journal: the rule that `book.CountedLines` applies to lines."""

    def __init__(self, book: Book) -> None:
        self._rules = LineRules(book.path)
        self.seals = self._rules.seals
        self._parts = [(*each, np.asarray(each[3])) for each in iterate_parts(book)]
        self.seen = np.zeros(sum(len(rows) * len(samples) for rows, samples, *_ in self._parts), np.bool_)
        self._extents: dict[str, set[Extent]] = {}
        for seal in self.seals.values():
            for name, extent in seal.files.items():
                self._extents.setdefault(name, set()).add(extent)
        self._damaged: dict[str, set[int]] = {}
        for seal in self.seals.values():
            for name, ends in seal.damaged.items():
                self._damaged.setdefault(name, set()).update(ends)
        self.contested: ContestedLines[tuple[int, int]] = ContestedLines()
        """The contested lines that count after all, as (journal number, line)."""

    def extents(self, path: Path) -> set[Extent]:
        """Return the extents at which a file was sealed."""
        return self._extents.get(path.name, set())

    def find_damaged(self, journal: JournalColumns) -> set[int]:
        """Return the ends of a journal's damaged lines: those found now, and those that seals list."""
        return self._damaged.get(journal.path.name, set()) | set(journal.damaged.tolist())

    def find_listed(self, journal: JournalColumns) -> Bools:
        """Return which lines seals list as damaged: sealed bytes are read without a look at checksums."""
        return np.isin(journal.ends, list(self._damaged.get(journal.path.name, ())))

    def select_lines(self, journal: JournalColumns, rows: Ints, number: int) -> Bools:
        """Return which lines count beyond doubt; contested ones are kept for the end."""
        places, chunks = self.find_keys(rows, journal.sample)
        listed = self.find_listed(journal)
        if len(unplanned := np.flatnonzero((places < 0) & ~listed)):
            line = int(unplanned[0])
            task, sample = journal.read_task_id(line), int(journal.sample[line])
            raise unplanned_key_error(journal.path, int(journal.ends[line]), task, sample)
        epochs, limits, contested = self._find_rules(journal.path, chunks)
        valid = (journal.ends <= limits) & ~listed
        for line in np.flatnonzero(valid & contested).tolist():
            self.contested.add(int(places[line]), (int(epochs[line]), int(journal.attempt[line])), (number, line))
        chosen = valid & ~contested
        chosen[chosen] = self._is_first(places[chosen])
        self.seen[places[valid]] = True
        return chosen

    def _is_first(self, places: Ints) -> Bools:
        """Return which lines are the first of their keys, in this journal and those before it."""
        _, first = np.unique(places, return_index=True)
        fresh = np.zeros(len(places), np.bool_)
        fresh[first] = True
        return fresh & ~self.seen[places]

    def find_keys(self, rows: Ints, sample: Ints) -> tuple[Ints, Ints]:
        """Return the place of every key among all requested ones, and its chunk; -1 for a key that is not planned."""
        places, chunks = np.full(len(rows), -1), np.full(len(rows), -1)
        base = 0
        for planned, samples, first, _, ends in self._parts:
            mine = (rows >= planned.start) & (rows < planned.stop)
            mine &= (sample >= samples.start) & (sample < samples.stop) & (places < 0)
            local = (rows[mine].astype(np.int64) - planned.start) * len(samples) + sample[mine] - samples.start
            places[mine], chunks[mine] = base + local, first + np.searchsorted(ends, local, "right")
            base += len(planned) * len(samples)
        return places, chunks

    def line_epochs(self, journal: JournalColumns, rows: Ints) -> Ints:
        """Return the epoch by which each line is ranked."""
        _, chunks = self.find_keys(rows, journal.sample)
        return self._find_rules(journal.path, chunks)[0]

    def _find_rules(self, path: Path, chunks: Ints) -> tuple[Ints, Ints, Bools]:
        """Return the rule of every line by its chunk: epoch, limit and whether the chunk is contested."""
        different, which = np.unique(chunks, return_inverse=True)
        rules = [self._rules.find(chunk, path) for chunk in different.tolist()]
        epochs, limits, contested = np.array(rules, np.int64).reshape(-1, 3).T
        return epochs[which], limits[which], contested[which].astype(np.bool_)

    def missing_keys(self) -> Iterator[tuple[int, int]]:
        """Yield (row, sample) of every key without a score."""
        for place in np.flatnonzero(~self.seen).tolist():
            yield self._key(place)

    def _key(self, place: int) -> tuple[int, int]:
        for rows, samples, *_ in self._parts:
            if place < len(rows) * len(samples):
                row, sample = divmod(place, len(samples))
                return rows.start + row, samples.start + sample
            place -= len(rows) * len(samples)
        raise IndexError(place)


@dataclass(frozen=True)
class RankedLines:
    """The lines of a journal: which count in their own directory, their places in the plan, and their ranks."""

    columns: Columns
    sample: Ints
    chosen: Bools
    place: Ints
    epoch: Ints
    attempt: Ints
    ends: Ints
    path: Path
    starts: Floats
    cached: Ints


def select_one_per_key(pieces: Sequence[RankedLines], texts: Sequence[str]) -> int:
    """Leave one line of every key chosen: the lowest epoch's, then the lowest attempt's, as in one directory.

    Among equals the name of the journal decides, then the content of the line, never the order of the directories.
    Return the number of keys whose lines differ in reward or answer. `texts` are the texts of the answers.
    """
    keys = sum((len(piece.chosen) for piece in pieces), 0)
    chosen = np.concatenate([np.zeros(0, np.bool_), *(piece.chosen for piece in pieces)])
    place = np.concatenate([np.zeros(0, np.int64), *(piece.place for piece in pieces)])
    times = np.bincount(place[chosen], minlength=1)
    doubled = chosen & (times[np.where(chosen, place, 0)] > 1)
    if not doubled.any():
        return 0
    cuts = np.cumsum([len(piece.chosen) for piece in pieces])[:-1]
    contested = [
        RankedLines(
            p.columns.where(mine),
            p.sample[mine],
            p.chosen,
            p.place[mine],
            p.epoch[mine],
            p.attempt[mine],
            EMPTY,
            p.path,
            p.starts,
            p.cached,
        )
        for p, mine in zip(pieces, np.split(doubled, cuts), strict=True)
    ]
    order, starts, disagreeing = _rank_lines(contested, texts)
    lost = np.ones(keys, np.bool_)
    lost[np.flatnonzero(doubled)[order[starts]]] = False
    for piece, gone in zip(pieces, np.split(doubled & lost, cuts), strict=True):
        piece.chosen[gone] = False
    return disagreeing


def _rank_lines(pieces: Sequence[RankedLines], texts: Sequence[str]) -> tuple[Ints, Ints, int]:
    """Return the lines by key and rank, where in that order each key begins, and how many keys disagree."""
    columns = merge_columns([piece.columns for piece in pieces])
    answer = _number_by_text(columns.answer, texts)
    place, epoch, attempt = (np.concatenate([getattr(p, n) for p in pieces]) for n in ("place", "epoch", "attempt"))
    names = sorted({piece.path.name for piece in pieces})
    journal = np.repeat([names.index(piece.path.name) for piece in pieces], [len(piece.place) for piece in pieces])
    contents = (
        columns.reward,
        answer,
        columns.prompt_tokens,
        columns.completion_tokens,
        columns.turns,
        columns.truncated,
        columns.seconds,
    )
    order = np.lexsort((_sum_parts(columns), *reversed(contents), journal, attempt, epoch, place))
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    disagree = _has_several_values(columns.reward[order], starts) | _has_several_values(answer[order], starts)
    return order, starts, int(disagree.sum())


def _has_several_values(values: Ints | Floats, starts: Ints) -> Bools:
    """Return for every key whether its lines have several values."""
    differs: Bools = np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts)
    return differs


def _number_by_text(numbers: Ints, texts: Sequence[str]) -> Ints:
    """Number answers by their sorted texts: their own numbers depend on the order in which they were read."""
    different = np.unique(numbers)
    by_text = sorted(different.tolist(), key=lambda number: "" if number == NO_ANSWER else texts[number])
    ranks = {number: rank for rank, number in enumerate(by_text)}
    return np.array([ranks[number] for number in different.tolist()], np.int64)[np.searchsorted(different, numbers)]


def _sum_parts(columns: Columns) -> Floats:
    """Return the sum of the parts of every rollout, the last criterion that distinguishes two lines."""
    return np.bincount(columns.parts.place, columns.parts.value, minlength=len(columns)).astype(np.float64, copy=False)
