"""The scored rollouts of a run as columns, each key once: from one directory, or from several of the same run.

Several directories of one run are shards that were filled separately and are read as one. The journals of a big book
are divided among processes; a small book is just read.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from rollbook.book import (
    Book,
    DamagedLine,
    SealedExtents,
    list_journals,
    missing_run_error,
    number_damaged_lines,
    read_rows,
)
from rollbook.core import Extent, decode
from rollbook.errors import BookError, UsageError
from rollbook.processes import PARENT_PID, module_argv, usable_cores
from rollbook.reports.column_cache import load_cached_columns, read_and_cache_columns
from rollbook.reports.journal_columns import JournalColumns, renumber_columns
from rollbook.reports.line_selection import EMPTY, NO_TIMES, LineSelector, RankedLines, select_one_per_key
from rollbook.stats import Bools, Columns, TextIds, merge_columns

COMPARE_BYTES = 1 << 20


def group_by_run(paths: Sequence[str | Path]) -> list[list[Path]]:
    """Group directories by run id, in the given order; a directory that two paths lead to is used once."""
    groups: dict[str, list[Path]] = {}
    for path in _unique_folders(paths):
        groups.setdefault(_read_run_id(path), []).append(path)
    return list(groups.values())


def _unique_folders(paths: Sequence[str | Path]) -> list[Path]:
    """Return each directory once, under the first path that leads to it."""
    places: dict[Path, Path] = {}
    for path in map(Path, paths):
        places.setdefault(path.resolve(), path)
    return list(places.values())


def _read_run_id(path: Path) -> str:
    try:
        manifest = decode((path / "run.json").read_bytes())
    except OSError:
        raise missing_run_error(path) from None
    except ValueError as error:
        raise BookError(f"{path / 'run.json'}: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("run"), str):
        raise BookError(f"{path / 'run.json'} does not describe a run: restore it from a copy of the run")
    return str(manifest["run"])


def open_shards(paths: Sequence[str | Path]) -> list[Book]:
    """Open the books of one run, the one with the largest plan first; a UsageError if they are not of one run."""
    books = sorted((Book(path) for path in _unique_folders(paths)), key=lambda book: -book.plan.requested)
    for other in books[1:]:
        if other.manifest.run != books[0].manifest.run:
            raise UsageError(f"{books[0].path} and {other.path} are different runs: they cannot be merged")
        if not _starts_with(books[0].path / "tasks.jsonl", other.path / "tasks.jsonl"):
            raise UsageError(
                f"{books[0].path} and {other.path} have the same run id but different tasks: they cannot be merged"
            )
    return books


def _starts_with(longer: Path, shorter: Path) -> bool:
    """Return whether one file is the beginning of the other."""
    with open(longer, "rb") as one, open(shorter, "rb") as two:
        while block := two.read(COMPARE_BYTES):
            if one.read(len(block)) != block:
                return False
    return True


MIN_PARALLEL_BYTES = 128 << 20
"""Below so many bytes, starting another process costs more than it saves."""

MAX_READERS = 8
HELPER_SHARE = 0.8
"""The share of a helper process relative to ours: it has to start first."""

MIN_BYTES_PER_S = 1 << 20


def read_all_columns(book: Book, files: Mapping[Path, Set[Extent]]) -> Iterator[JournalColumns]:
    """Yield the columns of a book's journals in order; `files` has the extents at which each was sealed.

    Cached ones are not read again. What a helper process could not read is read here.
    """
    schema, tasks = book.manifest.schema, book.tasks
    found = {
        path: journal
        for path, sealed in files.items()
        if (journal := load_cached_columns(path, schema, tasks.path, sealed))
    }
    unread = {path: sealed for path, sealed in files.items() if path not in found}
    ours, *theirs = split_by_size(list(unread), choose_reader_count(unread))
    with ExitStack() as stack:
        helpers = [stack.enter_context(_ReaderProcess(book, {path: files[path] for path in some})) for some in theirs]
        rows = read_rows(tasks.path, len(tasks)) if unread else {}  # not `tasks.rows`, which would stay in memory
        found |= {path: read_and_cache_columns(path, schema, tasks.path, rows, files[path]) for path in ours}
        for helper in helpers:
            found |= helper.read_columns()
        for path, sealed in files.items():
            yield found.pop(path) if path in found else read_and_cache_columns(path, schema, tasks.path, rows, sealed)


def choose_reader_count(paths: Iterable[Path]) -> int:
    """Return how many processes are worth starting for these files."""
    size = sum(path.stat().st_size for path in paths)
    return max(1, min(MAX_READERS, usable_cores(), size // (MIN_PARALLEL_BYTES // 2)))


def split_by_size(paths: Sequence[Path], readers: int) -> list[list[Path]]:
    """Split files into shares of similar size, the first (ours) a little larger; big files first."""
    shares: list[list[Path]] = [[] for _ in range(readers)]
    loads = [0.0] * readers
    for path in sorted(paths, key=lambda path: -path.stat().st_size):
        at = min(range(readers), key=lambda at: loads[at])
        shares[at].append(path)
        loads[at] += path.stat().st_size / (HELPER_SHARE if at else 1)
    return shares


class _ReaderProcess:
    """A child process that reads journals (column_reader.py); it returns the columns in an unnamed file."""

    def __init__(self, book: Book, files: Mapping[Path, Set[Extent]]) -> None:
        self._timeout_s = 60 + sum(path.stat().st_size for path in files) / MIN_BYTES_PER_S
        self._input, self._output = (_unnamed_file() for _ in range(2))
        pickle.dump((book.manifest.schema, (book.tasks.path, len(book.tasks)), files), self._input)
        self._input.seek(0)

    def __enter__(self) -> _ReaderProcess:
        environ = {**os.environ, PARENT_PID: str(os.getpid())}
        argv = module_argv("rollbook.reports.column_reader")
        self._popen = subprocess.Popen(
            argv, stdin=self._input, stdout=self._output, stderr=subprocess.DEVNULL, env=environ
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait(10)
        self._input.close()
        self._output.close()

    def read_columns(self) -> dict[Path, JournalColumns]:
        """Return what it read; nothing if it failed, since reading here gives the better error."""
        try:
            if self._popen.wait(self._timeout_s):
                return {}
        except subprocess.TimeoutExpired:
            return {}
        self._output.seek(0)
        journals: list[JournalColumns] = pickle.load(self._output)
        return {journal.path: journal for journal in journals}


def _unnamed_file() -> IO[bytes]:
    return tempfile.TemporaryFile()


ColumnsReader: TypeAlias = Callable[[Book, Mapping[Path, Set[Extent]]], Iterator[JournalColumns]]
"""Yields the columns of a book's journals, each with the extents at which it was sealed."""


class RunColumns:
    """The scored rollouts of a run as columns. Tasks are given by row, answers and parts by number.

    The first book's plan defines what is requested. A key that several directories have counts once; `disagreeing`
    counts the keys for which they do not have the same reward and answer, `outranked` has the lines (journal, end) that
    count in their own directory only. `samples` are the sample numbers of the columns, `starts` the times at which
    these rollouts began, `cached` the cached tokens of their prompts. `chosen` are the lines of every journal that
    count, `damaged` those that are unreadable.
    """

    def __init__(self, books: Sequence[Book], read: ColumnsReader = read_all_columns) -> None:
        self._read_columns = read
        self.answers, self.parts = TextIds(), TextIds()
        self._selector = LineSelector(books[0])
        self._several = len(books) > 1
        self.disagreeing, self.outranked = 0, set[tuple[Path, int]]()
        self.damaged: list[DamagedLine] = []
        self._damaged_read = 0
        pieces = [piece for book in books for piece in self._read_book(book, book is books[0])]
        if self._several:
            self._select_across(pieces)
        self.dropped = sum(len(piece.chosen) - int(piece.chosen.sum()) for piece in pieces) - self._damaged_read
        self.chosen = [piece.chosen for piece in pieces]
        self.columns = merge_columns([piece.columns.where(piece.chosen) for piece in pieces])
        self.samples = np.concatenate([EMPTY, *(piece.sample[piece.chosen] for piece in pieces)])
        self.starts = np.concatenate([NO_TIMES, *(piece.starts[piece.chosen] for piece in pieces)])
        self.cached = np.concatenate([EMPTY, *(piece.cached[piece.chosen] for piece in pieces)])

    def _read_book(self, book: Book, is_first: bool) -> list[RankedLines]:
        selector = self._selector if is_first else LineSelector(book)
        pieces = [*self._read_journals(book, selector)]
        for number, line in selector.contested:
            pieces[number].chosen[line] = True
        return pieces

    def _select_across(self, pieces: Sequence[RankedLines]) -> None:
        """Leave each key chosen once among all directories."""
        chosen_alone = [piece.chosen.copy() for piece in pieces]
        for piece in pieces:
            piece.chosen[piece.place < 0] = False  # planned only in that directory
        self.disagreeing = select_one_per_key(pieces, self.answers.texts)
        for piece, before in zip(pieces, chosen_alone, strict=True):
            self._selector.seen[piece.place[piece.chosen]] = True
            self.outranked.update((piece.path, end) for end in piece.ends[before & ~piece.chosen].tolist())

    def _read_journals(self, book: Book, selector: LineSelector) -> Iterator[RankedLines]:
        """Yield the lines of every journal, and which of them count beyond doubt."""
        sealed_extents = SealedExtents(book.path, selector.seals)
        sealed_extents.check_present(failures=False)
        sealed = {path: selector.extents(path) for path in list_journals(book.path, failures=False)}
        for number, journal in enumerate(self._read_columns(book, sealed)):
            if not sealed[journal.path] <= journal.extents:  # this raises the error
                sealed_extents.check_read(journal.path, int(journal.ends[-1]) if len(journal.ends) else 0)
            if damaged := selector.find_damaged(journal):
                self.damaged += number_damaged_lines(journal.path, book.manifest.schema, damaged)
            self._damaged_read += int(selector.find_listed(journal).sum())
            columns = renumber_columns(journal, self.answers, self.parts)
            yield self._rank_lines(journal, columns, selector, selector.select_lines(journal, columns.task, number))

    def _rank_lines(
        self, journal: JournalColumns, columns: Columns, selector: LineSelector, chosen: Bools
    ) -> RankedLines:
        """Return the lines of a journal; ranks are needed only among several directories."""
        if not self._several:
            ranks = (EMPTY, EMPTY, EMPTY, EMPTY)
            return RankedLines(columns, journal.sample, chosen, *ranks, journal.path, journal.starts, journal.cached)
        place, _ = self._selector.find_keys(columns.task, journal.sample)
        epoch = selector.line_epochs(journal, columns.task)
        ranks = (place, epoch, journal.attempt, journal.ends)
        return RankedLines(columns, journal.sample, chosen, *ranks, journal.path, journal.starts, journal.cached)

    def first_of_unscored(self, keys: Iterable[tuple[int, int]]) -> Iterator[bool]:
        """Yield for each key (row, sample) whether it has no score and did not come before."""
        done = self._selector.seen.copy()
        for row, sample in keys:
            place = int(self._selector.find_keys(np.array([row]), np.array([sample]))[0][0])
            yield not done[place]
            done[place] = True

    def missing_keys(self) -> Iterator[tuple[int, int]]:
        """Yield (row, sample) of every key without a score."""
        return self._selector.missing_keys()
