"""Journals that are still growing: what was read of them is held, and only what was appended is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from rollbook.book.book import Book
from rollbook.book.marks import FailedMark, journal_files, stands
from rollbook.book.segment import malformed
from rollbook.book.tasks import TaskFile
from rollbook.collect.sheet import Sheet, read_sheet
from rollbook.collect.sheets import read_sheets
from rollbook.core.rollout import Timing
from rollbook.core.seal import Extent
from rollbook.stats.columns import SILENT, Names, merged


class FollowedSheets:
    """The sheets of a book's journals of scored lines, as `read_sheets` gives them, held from one look to the next."""

    def __init__(self) -> None:
        self.sheets: list[Sheet] = []
        self._held: dict[Path, tuple[int, Sheet]] = {}

    def read(self, tasks: TaskFile, files: Mapping[Path, Set[Extent]]) -> Iterator[Sheet]:
        """The sheets in the order of the files; bytes that were read before are not read again."""
        held = {path: self._held[path] for path in files if path in self._held and _continues(path, self._held[path])}
        fresh = {path: sealed for path, sealed in files.items() if path not in held}
        held = {path: (inode, self._extended(sheet, tasks, files[path])) for path, (inode, sheet) in held.items()}
        held |= {sheet.path: (os.stat(sheet.path).st_ino, sheet) for sheet in read_sheets(tasks, fresh)}
        self.sheets = [held[path][1] for path in files]
        # What is not as it was sealed is read again at the next look, and refused again.
        self._held = {path: held[path] for path in files if files[path] <= held[path][1].extents}
        return iter(self.sheets)

    def _extended(self, sheet: Sheet, tasks: TaskFile, sealed: Set[Extent]) -> Sheet:
        """The sheet with the lines behind it. What was sealed since of a file that we saw grow is taken as it is; what
        a file holds that was never read before is held against its seals like everywhere."""
        size = os.stat(sheet.path).st_size
        if size > _end(sheet):
            sheet = joined(sheet, read_sheet(sheet.path, tasks.rows, start=_end(sheet)))
        return replace(sheet, extents=sheet.extents | {extent for extent in sealed if extent.bytes <= size})


def _end(sheet: Sheet) -> int:
    return int(sheet.ends[-1]) if len(sheet.ends) else 0


def _continues(path: Path, held: tuple[int, Sheet]) -> bool:
    """Whether a file is the one that was read, and no shorter."""
    stat = os.stat(path)
    return stat.st_ino == held[0] and stat.st_size >= _end(held[1])


def joined(sheet: Sheet, more: Sheet) -> Sheet:
    """A sheet with the lines that follow it in the same file."""
    if not len(more.ends):
        return sheet
    answers, parts = Names(), Names()
    columns = []
    for each in (sheet, more):
        numbers = np.array([*(answers[text] for text in each.answers), SILENT], np.int32)
        names = np.array([parts[name] for name in each.parts], np.int32)
        held = replace(each.columns.parts, name=names[each.columns.parts.name])
        columns.append(replace(each.columns, answer=numbers[each.columns.answer], parts=held))
    beside = {
        name: np.concatenate([getattr(sheet, name), getattr(more, name)])
        for name in ("sample", "attempt", "starts", "ends")
    }
    return Sheet(sheet.path, sheet.extents, answers.texts, parts.texts, merged(columns), **beside)


class FailedTry(FailedMark, frozen=True):
    """What of a failed line is held."""

    timing: Timing = Timing()


@dataclass(frozen=True)
class LocatedTry:
    """A failed attempt and where its line lies."""

    path: Path
    begin: int
    end: int
    mark: FailedTry

    @property
    def ended(self) -> float:
        """When it failed, in Unix time."""
        return self.mark.timing.start + self.mark.timing.seconds


class FollowedFailures:
    """The failed attempts of a book, each read once."""

    def __init__(self) -> None:
        self.tries: list[LocatedTry] = []
        self._read: dict[Path, tuple[int, int]] = {}

    def refresh(self, run: Path) -> None:
        """Take in what was appended since."""
        for path in journal_files(run, failures=True):
            end, lines = self._read.get(path, (0, 0))
            for begin, line in appended(path, end):
                end, lines = begin + len(line) + 1, lines + 1
                self.tries.append(LocatedTry(path, begin, end - 1, _mark(path, lines, line)))
            self._read[path] = end, lines

    def standing(self, book: Book) -> Iterator[FailedMark]:
        """The final failures that no later round has taken up again."""
        rounds = book.rounds()
        return (each.mark for each in self.tries if each.mark.final and stands(each.mark, rounds))


_decoder = msgspec.json.Decoder(FailedTry)


def _mark(path: Path, number: int, line: bytes) -> FailedTry:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError as error:
        raise malformed(path, number, error) from None


def appended(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines behind an offset, each with its own."""
    if path.stat().st_size <= start:
        return
    with open(path, "rb") as file:
        file.seek(start)
        whole, _, _ = file.read().partition(b"\0")
    for line in whole[: whole.rfind(b"\n") + 1].split(b"\n")[:-1]:
        yield start, line
        start += len(line) + 1
