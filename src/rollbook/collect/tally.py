"""The scored rollouts of a run as columns, each key once: from one directory, or from several of the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from rollbook.book.book import Book
from rollbook.book.marks import journal_files
from rollbook.book.tasks import TaskFile
from rollbook.book.vouched import Vouched
from rollbook.collect.doubles import Piece, count_once
from rollbook.collect.sheet import Sheet
from rollbook.collect.sheets import read_sheets
from rollbook.collect.standing import Standing
from rollbook.core.seal import Extent
from rollbook.stats.columns import SILENT, Bools, Columns, Names, merged

NONE = np.zeros(0, np.int64)
SheetReader: TypeAlias = Callable[[TaskFile, Mapping[Path, Set[Extent]]], Iterator[Sheet]]
"""Gives the sheets of a book's journal files, each file with the extents at which it was sealed."""


class Tally:
    """Everything the numbers need of a run. Tasks are named by their rows, answers and parts by their numbers.

    The first book's plan says what was asked. A key that several directories have counts once; `disagreeing` are the
    keys for which they do not have the same reward and answer. `chosen` are the lines of every sheet that count.
    """

    def __init__(self, books: Sequence[Book], read: SheetReader = read_sheets) -> None:
        self._sheets = read
        self.answers, self.parts = Names(), Names()
        self._plan = Standing(books[0])
        self._several = len(books) > 1
        pieces = [piece for book in books for piece in self._of(book, book is books[0])]
        self.disagreeing = count_once(pieces, self.answers.texts) if self._several else 0
        for piece in pieces if self._several else ():
            self._plan.seen[piece.place[piece.chosen]] = True
        self.dropped = sum(len(piece.chosen) - int(piece.chosen.sum()) for piece in pieces)
        self.chosen = [piece.chosen for piece in pieces]
        self.columns = merged([piece.columns.where(piece.chosen) for piece in pieces])

    def _of(self, book: Book, first: bool) -> list[Piece]:
        standing = self._plan if first else Standing(book)
        held = [*self._read(book, standing)]
        for number, line in standing.settle():
            held[number].chosen[line] = True
        for piece in held if self._several else ():
            piece.chosen[piece.place < 0] = False  # asked for only there
        return held

    def _read(self, book: Book, standing: Standing) -> Iterator[Piece]:
        """Every file's lines, and which of them count beyond doubt."""
        vouched = Vouched(book.path, standing.seals)
        vouched.check_present(failures=False)
        sealed = {path: standing.extents(path) for path in journal_files(book.path, failures=False)}
        for number, sheet in enumerate(self._sheets(book.tasks, sealed)):
            if not sealed[sheet.path] <= sheet.extents:  # it says what is wrong
                vouched.check_read(sheet.path, int(sheet.ends[-1]) if len(sheet.ends) else 0)
            columns = self._renamed(sheet)
            yield self._piece(sheet, columns, standing, standing.judge(sheet, columns.task, number))

    def _piece(self, sheet: Sheet, columns: Columns, standing: Standing, chosen: Bools) -> Piece:
        """What is to be known of a file's lines; their ranks only where there are others to compare them with."""
        if not self._several:
            return Piece(columns, chosen, NONE, NONE, NONE, sheet.path.name)
        place, _ = self._plan.find(columns.task, sheet.sample)
        epoch = standing.epochs(sheet, columns.task)
        return Piece(columns, chosen, place, epoch, sheet.attempt, sheet.path.name)

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
