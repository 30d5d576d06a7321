"""Which lines of a book count, a whole file at a time: the rules of `book.marks`, over arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rollbook.book.book import Book
from rollbook.book.lease import Leases
from rollbook.book.marks import NEVER, chunk_index, counts, worker_of
from rollbook.book.seal import Seals
from rollbook.collect.sheet import Sheet
from rollbook.core.seal import Extent
from rollbook.errors import BookError
from rollbook.stats.columns import Bools, Ints

ALWAYS = 1 << 62


class Standing:
    """Decides which lines of one book count, as `book.marks.Scored` does line by line."""

    def __init__(self, book: Book) -> None:
        self._leases = Leases(book.path)
        self._leases.refresh()
        self.seals = Seals(book.path).refresh()
        self._parts = [(*each, np.asarray(each[3])) for each in chunk_index(book)]
        self.seen = np.zeros(sum(len(rows) * len(samples) for rows, samples, *_ in self._parts), np.bool_)
        self._extents: dict[str, set[Extent]] = {}
        for seal in self.seals.values():
            for name, extent in seal.files.items():
                self._extents.setdefault(name, set()).add(extent)
        self._contested: dict[int, tuple[tuple[int, int], int, int]] = {}

    def extents(self, path: Path) -> set[Extent]:
        """Up to where a file was sealed, and what it was then."""
        return self._extents.get(path.name, set())

    def judge(self, sheet: Sheet, rows: Ints, number: int) -> Bools:
        """Which lines count beyond doubt; contested ones are kept for the end."""
        places, chunks = self.find(rows, sheet.sample)
        if len(strays := np.flatnonzero(places < 0)):
            raise _stray(sheet, int(strays[0]))
        limits, contested = self._limits(sheet.path, chunks)
        chosen = (sheet.ends <= limits) & ~contested
        held = np.flatnonzero(chosen)
        _, first = np.unique(places[held], return_index=True)
        fresh = np.zeros(len(held), np.bool_)
        fresh[first] = True
        chosen[held] = fresh & ~self.seen[places[held]]
        self.seen[places[chosen]] = True
        for line in np.flatnonzero(contested).tolist():
            self._contest(sheet, number, line, int(places[line]), int(chunks[line]))
        return chosen

    def find(self, rows: Ints, sample: Ints) -> tuple[Ints, Ints]:
        """The place of every key among all requested ones, and its chunk; -1 for what was not asked for."""
        places, chunks = np.full(len(rows), -1), np.full(len(rows), -1)
        base = 0
        for asked, samples, first, _, ends in self._parts:
            mine = (rows >= asked.start) & (rows < asked.stop)
            mine &= (sample >= samples.start) & (sample < samples.stop) & (places < 0)
            local = (rows[mine].astype(np.int64) - asked.start) * len(samples) + sample[mine] - samples.start
            places[mine], chunks[mine] = base + local, first + np.searchsorted(ends, local, "right")
            base += len(asked) * len(samples)
        return places, chunks

    def epochs(self, sheet: Sheet, rows: Ints) -> Ints:
        """Under which lease each line was written: the first, unless its chunk had two owners."""
        _, chunks = self.find(rows, sheet.sample)
        met, which = np.unique(chunks, return_inverse=True)
        worker = worker_of(sheet.path)
        return np.array([self._epoch(chunk, worker) for chunk in met.tolist()], np.int64)[which]

    def _epoch(self, chunk: int, worker: str) -> int:
        contested = self._leases.epochs.get(chunk, 0) > 1
        return self._leases.owners(chunk).get(worker, NEVER) if contested else 1

    def _limits(self, path: Path, chunks: Ints) -> tuple[Ints, Bools]:
        """For every line: up to where its chunk's seal lets this file count, and whether its chunk had two owners."""
        met, which = np.unique(chunks, return_inverse=True)
        limits, contested = np.full(len(met), ALWAYS), np.zeros(len(met), np.bool_)
        for at, chunk in enumerate(met.tolist()):
            contested[at] = self._leases.epochs.get(chunk, 0) > 1
            seal = self.seals.get(chunk)
            if seal is not None and seal.epoch >= 1:
                limits[at] = seal.files[path.name].bytes if path.name in seal.files else 0
        return limits[which], contested[which]

    def _contest(self, sheet: Sheet, number: int, line: int, place: int, chunk: int) -> None:
        epoch = self._leases.owners(chunk).get(worker_of(sheet.path), NEVER)
        if not counts(self.seals.get(chunk), epoch, sheet.path.name, int(sheet.ends[line])):
            return
        rank = (epoch, int(sheet.attempt[line]))
        held = self._contested.get(place)
        self.seen[place] = True
        if held is None or rank < held[0]:
            self._contested[place] = (rank, number, line)

    def settle(self) -> Iterator[tuple[int, int]]:
        """(sheet, line) of the contested lines that count after all."""
        return ((number, line) for _, number, line in self._contested.values())

    def missing(self) -> Iterator[tuple[int, int]]:
        """(row, sample) of every key without a score."""
        for place in np.flatnonzero(~self.seen).tolist():
            yield self._key(place)

    def _key(self, place: int) -> tuple[int, int]:
        for rows, samples, *_ in self._parts:
            if place < len(rows) * len(samples):
                row, sample = divmod(place, len(samples))
                return rows.start + row, samples.start + sample
            place -= len(rows) * len(samples)
        raise IndexError(place)


def _stray(sheet: Sheet, line: int) -> BookError:
    return BookError(f"{sheet.path}: task {sheet.task(line)!r} sample {sheet.sample[line]} is not in the plan")
