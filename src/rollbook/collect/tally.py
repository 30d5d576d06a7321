"""The scored rollouts of a run as columns, each key once: from one directory, or from several of the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rollbook.book.book import Book
from rollbook.book.marks import journal_files
from rollbook.book.vouched import Vouched
from rollbook.collect.sheet import Sheet
from rollbook.collect.sheets import read_sheets
from rollbook.collect.standing import Standing
from rollbook.stats.columns import SILENT, Bools, Columns, Ints, Names, merged


class Tally:
    """Everything the numbers need of a run. Tasks are named by their rows, answers and parts by their numbers.

    The first book's plan says what was asked. A key that two directories have counts once, from the first.
    """

    def __init__(self, books: Sequence[Book]) -> None:
        self.dropped = 0
        self.answers, self.parts = Names(), Names()
        self._plan = Standing(books[0])
        self.columns = merged([each for book in books for each in self._of(book, book is books[0])])

    def _of(self, book: Book, first: bool) -> Iterator[Columns]:
        standing = self._plan if first else Standing(book)
        before = None if first else self._plan.seen.copy()
        held = [*self._read(book, standing)]
        for number, line in standing.settle():
            held[number][2][line] = True
        for columns, sample, chosen in held:
            if before is not None:
                self._only_new(columns.task, sample, chosen, before)
            self.dropped += len(chosen) - int(chosen.sum())
            yield columns.where(chosen)

    def _read(self, book: Book, standing: Standing) -> Iterator[tuple[Columns, Ints, Bools]]:
        """Every file's columns and samples, and which of them count beyond doubt."""
        vouched = Vouched(book.path, standing.seals)
        vouched.check_present(failures=False)
        sealed = {path: standing.extents(path) for path in journal_files(book.path, failures=False)}
        for number, sheet in enumerate(read_sheets(book.tasks, sealed)):
            if not sealed[sheet.path] <= sheet.extents:  # it says what is wrong
                vouched.check_read(sheet.path, int(sheet.ends[-1]) if len(sheet.ends) else 0)
            columns = self._renamed(sheet)
            yield columns, sheet.sample, standing.judge(sheet, columns.task, number)

    def _only_new(self, rows: Ints, sample: Ints, chosen: Bools, before: Bools) -> None:
        """Leave out what another directory of the run has already."""
        places, _ = self._plan.find(rows, sample)
        chosen &= (places >= 0) & ~before[places]
        self._plan.seen[places[chosen]] = True

    def _renamed(self, sheet: Sheet) -> Columns:
        """The sheet's columns with this tally's numbers instead of the sheet's own."""
        held = sheet.columns
        known = self.answers
        answers = np.array([*(known[text] if text else SILENT for text in sheet.answers), SILENT], np.int32)
        names = np.array([self.parts[name] for name in sheet.parts], np.int32)
        parts = replace(held.parts, name=names[held.parts.name])
        return replace(held, answer=answers[held.answer], parts=parts)

    def missing(self) -> Iterator[tuple[int, int]]:
        """(row, sample) of every key without a score."""
        return self._plan.missing()
