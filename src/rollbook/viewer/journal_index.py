"""Where every counted rollout and failed attempt lies: from a key to the bytes of its line, without a scan.

Journals are still growing: what was read of them is held, and only what was appended is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rollbook.book import Book, FailedLineHeader, LineReader, TaskFile, is_still_final, list_journals
from rollbook.core import Extent, Timing
from rollbook.errors import BookError
from rollbook.reports import JournalColumns, read_all_columns, read_journal_columns
from rollbook.stats import NO_ANSWER, Bools, Columns, Floats, Ints, TextIds, merge_columns


@dataclass(frozen=True)
class RolloutIndex:
    """One entry a counted rollout, in the order of `columns`. `order` sorts them by task and sample."""

    columns: Columns
    paths: list[Path]
    file: Ints
    begin: Ints
    end: Ints
    sample: Ints
    starts: Floats
    order: Ints

    def find_task(self, row: int) -> Ints:
        """The places of a task's rollouts, by ascending sample."""
        rows = self.columns.task
        low = np.searchsorted(rows, row, "left", sorter=self.order)
        high = np.searchsorted(rows, row, "right", sorter=self.order)
        return self.order[low:high]

    def find(self, row: int, sample: int) -> int | None:
        """The place of one rollout; None if it has no score."""
        places = self.find_task(row)
        at = np.flatnonzero(self.sample[places] == sample)
        return int(places[at[0]]) if len(at) else None

    def line(self, place: int) -> bytes:
        """The line of a rollout, read from its journal."""
        return read_line(self.paths[int(self.file[place])], int(self.begin[place]), int(self.end[place]))

    def path(self, place: int) -> Path:
        """The journal of a rollout."""
        return self.paths[int(self.file[place])]


def build_rollout_index(columns: Columns, journals: Sequence[JournalColumns], chosen: Sequence[Bools]) -> RolloutIndex:
    """The places of what was counted: the chosen lines of the sheets, one sheet after the other."""
    ends = [sheet.ends for sheet in journals]
    begins = [np.concatenate([np.zeros(1, np.int64), each[:-1]])[: len(each)] for each in ends]
    sample = _select_chosen([sheet.sample for sheet in journals], chosen)
    return RolloutIndex(
        columns=columns,
        paths=[sheet.path for sheet in journals],
        file=np.repeat(np.arange(len(journals)), [int(each.sum()) for each in chosen]),
        begin=_select_chosen(begins, chosen),
        end=_select_chosen(ends, chosen),
        sample=sample,
        starts=_select_chosen([sheet.starts for sheet in journals], chosen).astype(np.float64),
        order=np.lexsort((sample, columns.task)),
    )


def _select_chosen(values: Sequence[Ints | Floats], chosen: Sequence[Bools]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *(v[c] for v, c in zip(values, chosen, strict=True))])


def read_line(path: Path, begin: int, end: int) -> bytes:
    """Some bytes of a file, without the end of the line; BookError where they are no text."""
    handle = os.open(path, os.O_RDONLY)
    try:
        line = os.pread(handle, end - begin, begin).rstrip(b"\n")
    finally:
        os.close(handle)
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise BookError(f"{path}: byte {begin + error.start} is not UTF-8: the line is damaged") from None
    return line


class JournalFollower:
    """The columns of a book's journals of scored lines, as `read_all_columns` gives them, held between looks."""

    def __init__(self) -> None:
        self.sheets: list[JournalColumns] = []
        self._held: dict[Path, tuple[int, JournalColumns]] = {}

    def read(self, tasks: TaskFile, files: Mapping[Path, Set[Extent]]) -> Iterator[JournalColumns]:
        """The sheets in the order of the files; bytes that were read before are not read again."""
        held = {
            path: self._held[path] for path in files if path in self._held and _is_same_file(path, self._held[path])
        }
        fresh = {path: sealed for path, sealed in files.items() if path not in held}
        held = {path: (inode, self._read_appended(sheet, tasks, files[path])) for path, (inode, sheet) in held.items()}
        held |= {sheet.path: (os.stat(sheet.path).st_ino, sheet) for sheet in read_all_columns(tasks, fresh)}
        self.sheets = [held[path][1] for path in files]
        # What is not as it was sealed is read again at the next look, and refused again.
        self._held = {path: held[path] for path in files if files[path] <= held[path][1].extents}
        return iter(self.sheets)

    def _read_appended(self, sheet: JournalColumns, tasks: TaskFile, sealed: Set[Extent]) -> JournalColumns:
        """The sheet with the lines behind it. What was sealed since of a file that we saw grow is taken as it is; what
        a file holds that was never read before is held against its seals like everywhere."""
        size = os.stat(sheet.path).st_size
        if size > _end_offset(sheet):
            sheet = concatenate_columns(sheet, read_journal_columns(sheet.path, tasks.rows, start=_end_offset(sheet)))
        return replace(sheet, extents=sheet.extents | {extent for extent in sealed if extent.bytes <= size})


def _end_offset(sheet: JournalColumns) -> int:
    return int(sheet.ends[-1]) if len(sheet.ends) else 0


def _is_same_file(path: Path, held: tuple[int, JournalColumns]) -> bool:
    """Whether a file is the one that was read, and no shorter."""
    stat = os.stat(path)
    return stat.st_ino == held[0] and stat.st_size >= _end_offset(held[1])


def concatenate_columns(sheet: JournalColumns, more: JournalColumns) -> JournalColumns:
    """A sheet with the lines that follow it in the same file."""
    if not len(more.ends):
        return sheet
    answers, parts = TextIds(), TextIds()
    columns = []
    for each in (sheet, more):
        numbers = np.array([*(answers[text] for text in each.answers), NO_ANSWER], np.int32)
        names = np.array([parts[name] for name in each.parts], np.int32)
        held = replace(each.columns.parts, name=names[each.columns.parts.name])
        columns.append(replace(each.columns, answer=numbers[each.columns.answer], parts=held))
    beside = {
        name: np.concatenate([getattr(sheet, name), getattr(more, name)])
        for name in ("sample", "attempt", "starts", "ends")
    }
    return JournalColumns(sheet.path, sheet.extents, answers.texts, parts.texts, merge_columns(columns), **beside)


class FailedAttempt(FailedLineHeader, frozen=True):
    """What of a failed line is held."""

    timing: Timing = Timing()


@dataclass(frozen=True)
class LocatedAttempt:
    """A failed attempt and where its line lies."""

    path: Path
    begin: int
    end: int
    mark: FailedAttempt

    @property
    def ended(self) -> float:
        """When it failed, in Unix time."""
        return self.mark.timing.start + self.mark.timing.seconds


class FailureFollower:
    """The failed attempts of a book, each read once."""

    def __init__(self) -> None:
        self.tries: list[LocatedAttempt] = []
        self._reader = LineReader(FailedAttempt)
        self._read: dict[Path, tuple[int, int]] = {}

    def refresh(self, run: Path) -> None:
        """Take in what was appended since."""
        for path in list_journals(run, failures=True):
            begin, lines = self._read.get(path, (0, 0))
            if path.stat().st_size <= begin:
                continue
            for end, attempt in self._reader.read(path, start=begin, first_number=lines + 1):
                self.tries.append(LocatedAttempt(path, begin, end - 1, attempt))
                begin, lines = end, lines + 1
            self._read[path] = begin, lines

    def list_final(self, book: Book) -> Iterator[FailedLineHeader]:
        """The final failures that no later round has taken up again."""
        rounds = book.rounds()
        return (each.mark for each in self.tries if is_still_final(each.mark, rounds))
