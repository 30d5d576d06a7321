"""An index of counted rollouts and failed attempts: from a key to the bytes of its line, without a scan.

Journals may still grow: what was read is kept in memory, and only appended lines are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rollbook.book import Book, FailedLineHeader, KeyMap, LineReader, is_still_final, list_journals
from rollbook.core import Extent, Timing
from rollbook.errors import BookError
from rollbook.reports import JournalColumns, read_all_columns, read_journal_columns, renumber_columns
from rollbook.stats import Bools, Columns, Floats, Ints, TextIds, merge_columns


@dataclass(frozen=True)
class RolloutIndex:
    """One entry for each counted rollout, in the order of `columns`. `order` sorts them by task and sample."""

    columns: Columns
    paths: list[Path]
    file: Ints
    begin: Ints
    end: Ints
    sample: Ints
    starts: Floats
    order: Ints

    def find_task(self, row: int) -> Ints:
        """Return the indices of a task's rollouts, by ascending sample."""
        rows = self.columns.task
        low = np.searchsorted(rows, row, "left", sorter=self.order)
        high = np.searchsorted(rows, row, "right", sorter=self.order)
        return self.order[low:high]

    def find(self, row: int, sample: int) -> int | None:
        """Return the index of one rollout; None if it has no score."""
        places = self.find_task(row)
        at = np.flatnonzero(self.sample[places] == sample)
        return int(places[at[0]]) if len(at) else None

    def line(self, place: int) -> bytes:
        """Read the line of a rollout from its journal."""
        return read_line(self.paths[int(self.file[place])], int(self.begin[place]), int(self.end[place]))

    def path(self, place: int) -> Path:
        """Return the journal of a rollout."""
        return self.paths[int(self.file[place])]


def build_rollout_index(columns: Columns, journals: Sequence[JournalColumns], chosen: Sequence[Bools]) -> RolloutIndex:
    """Build the index from the chosen lines of the journals, one journal after the other."""
    ends = [journal.ends for journal in journals]
    begins = [np.concatenate([np.zeros(1, np.int64), each[:-1]])[: len(each)] for each in ends]
    sample = _select_chosen([journal.sample for journal in journals], chosen)
    return RolloutIndex(
        columns=columns,
        paths=[journal.path for journal in journals],
        file=np.repeat(np.arange(len(journals)), [int(each.sum()) for each in chosen]),
        begin=_select_chosen(begins, chosen),
        end=_select_chosen(ends, chosen),
        sample=sample,
        starts=_select_chosen([journal.starts for journal in journals], chosen).astype(np.float64),
        order=np.lexsort((sample, columns.task)),
    )


def _select_chosen(values: Sequence[Ints | Floats], chosen: Sequence[Bools]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *(v[c] for v, c in zip(values, chosen, strict=True))])


def read_line(path: Path, begin: int, end: int) -> bytes:
    """Read a line by its offsets, without the newline; raise a BookError where it is not UTF-8."""
    with open(path, "rb") as file:
        file.seek(begin)
        line = file.read(end - begin).rstrip(b"\n").rpartition(b"\n")[2]  # before it may be a damaged one
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise BookError(f"{path}: byte {begin + error.start} is not UTF-8: the line is damaged") from None
    return line


class JournalFollower:
    """The columns of a book's journals, as `read_all_columns` yields them, kept from one read to the next."""

    def __init__(self) -> None:
        self.journals: list[JournalColumns] = []
        self._held: dict[Path, tuple[int, JournalColumns]] = {}

    def read(self, book: Book, files: Mapping[Path, Set[Extent]]) -> Iterator[JournalColumns]:
        """Return the columns in the order of the files; bytes that were read before are not read again."""
        held = {
            path: self._held[path] for path in files if path in self._held and _is_same_file(path, self._held[path])
        }
        fresh = {path: sealed for path, sealed in files.items() if path not in held}
        held = {
            path: (inode, self._read_appended(journal, book, files[path])) for path, (inode, journal) in held.items()
        }
        held |= {journal.path: (os.stat(journal.path).st_ino, journal) for journal in read_all_columns(book, fresh)}
        self.journals = [held[path][1] for path in files]
        # A journal that differs from its seals is read again next time, and refused again.
        self._held = {path: held[path] for path in files if files[path] <= held[path][1].extents}
        return iter(self.journals)

    def _read_appended(self, journal: JournalColumns, book: Book, sealed: Set[Extent]) -> JournalColumns:
        """Return the columns with appended lines. Extents sealed while we saw the file grow are trusted; a file that
        is read for the first time is checked against its seals as everywhere."""
        size = os.stat(journal.path).st_size
        if size > _end_offset(journal):
            start, schema = _end_offset(journal), book.manifest.schema
            journal = concatenate_columns(
                journal, read_journal_columns(journal.path, schema, book.tasks.rows, start=start)
            )
        return replace(journal, extents=journal.extents | {extent for extent in sealed if extent.bytes <= size})


def _end_offset(journal: JournalColumns) -> int:
    return int(journal.ends[-1]) if len(journal.ends) else 0


def _is_same_file(path: Path, held: tuple[int, JournalColumns]) -> bool:
    """Return whether a file is the one that was read, and not shorter."""
    stat = os.stat(path)
    return stat.st_ino == held[0] and stat.st_size >= _end_offset(held[1])


def concatenate_columns(journal: JournalColumns, more: JournalColumns) -> JournalColumns:
    """Append the columns of the lines that follow in the same file."""
    damaged = np.union1d(journal.damaged, more.damaged)  # a damaged end is read again each time
    if not len(more.ends):
        return replace(journal, damaged=damaged)
    answers, parts = TextIds(), TextIds()
    columns = [renumber_columns(each, answers, parts) for each in (journal, more)]
    by_line = {
        name: np.concatenate([getattr(journal, name), getattr(more, name)])
        for name in ("sample", "attempt", "starts", "cached", "ends")
    }
    merged = merge_columns(columns)
    return JournalColumns(journal.path, journal.extents, answers.texts, parts.texts, merged, **by_line, damaged=damaged)


class FailedAttempt(FailedLineHeader, frozen=True):
    """The fields of a failed line that are kept."""

    timing: Timing = Timing()


@dataclass(frozen=True)
class LocatedAttempt:
    """A failed attempt with the position of its line."""

    path: Path
    begin: int
    end: int
    line: FailedAttempt

    @property
    def ended(self) -> float:
        """When it failed, in Unix time."""
        return self.line.timing.start + self.line.timing.seconds


class FailureFollower:
    """The failed attempts of a book of this schema; each line is read once."""

    def __init__(self, schema: int) -> None:
        self.tries: list[LocatedAttempt] = []
        self._reader = LineReader(FailedAttempt, schema)
        self._read: dict[Path, tuple[int, int]] = {}

    def refresh(self, run: Path) -> None:
        """Read what was appended since."""
        for path in list_journals(run, failures=True):
            begin, lines = self._read.get(path, (0, 0))
            if path.stat().st_size <= begin:
                continue
            found, damaged_before = list[LocatedAttempt](), len(self._reader.damaged)
            for end, attempt in self._reader.read(path, start=begin, first_number=lines + 1):
                found.append(LocatedAttempt(path, begin, end - 1, attempt))
                begin = end
            damaged = self._reader.damaged[damaged_before:]
            self.tries += found
            self._read[path] = max([begin, *(line.end for line in damaged)]), lines + len(found) + len(damaged)

    def list_final(self, book: Book) -> Iterator[FailedLineHeader]:
        """Yield the final failures that no later round has reopened; raise a BookError for a key not in the plan."""
        rounds, keys = book.rounds(), KeyMap(book)
        for each in self.tries:
            keys.check(each.path, each.end + 1, each.line.task, each.line.sample)
            if is_still_final(each.line, rounds):
                yield each.line
