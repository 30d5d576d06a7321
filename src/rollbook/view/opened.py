"""A book held open: looked at again when its files have changed, without rereading what was read."""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path

from rollbook.book.book import Book
from rollbook.book.marks import FailedMark
from rollbook.collect.report import Reading
from rollbook.collect.tally import Tally
from rollbook.errors import BookError, RollbookError
from rollbook.view.folder import Folder
from rollbook.view.following import FollowedFailures, FollowedSheets
from rollbook.view.located import locate
from rollbook.view.snapshot import Snapshot
from rollbook.view.vocabulary import Vocabulary

RESTS = 4
"""A look is followed by a pause of so many times what it took: following a run must not slow the run."""

MOST_OPEN = 8
Stamp = tuple[tuple[str | int, ...], ...]


class Opened:
    """One book and its newest snapshot."""

    def __init__(self, path: Path, vocabulary: Vocabulary | None = None) -> None:
        self.path, self._vocabulary = path, vocabulary
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._stamp: Stamp = ()
        self._next = 0.0
        self._identity = (0, 0)
        self._open()

    def _open(self) -> None:
        identity = identity_of(self.path)
        self._book = Book(self.path)
        self._book.check_tasks()
        self._tasks_bytes = self._book.tasks.path.stat().st_size
        weakref.finalize(self._book, self._book.tasks.close)  # snapshots may outlive us
        self._sheets, self._failures = FollowedSheets(), FollowedFailures()
        self._identity = identity  # last: what could not be opened whole is opened again

    def look(self) -> Snapshot:
        """The run as it stands, taken anew only if something was written since."""
        with self._lock:
            begun = time.monotonic()
            replaced = identity_of(self.path) != self._identity
            if self._snapshot is not None and begun < self._next and not replaced:
                return self._snapshot
            if replaced:
                self._open()
            stamp = (self._identity, *stamp_of(self.path))
            if self._snapshot is None or stamp != self._stamp:
                self._snapshot = self._taken((self._snapshot.version if self._snapshot else 0) + 1)
                self._stamp = stamp
                self._next = time.monotonic() + RESTS * (time.monotonic() - begun)
            return self._snapshot

    def _taken(self, version: int) -> Snapshot:
        try:
            return self._take(version)
        except BookError:  # a line whose plan or task was written while we looked; a second look says if it is more
            self._open()
            return self._take(version)

    def _take(self, version: int) -> Snapshot:
        book = self._book
        book.load_plan()
        if (size := book.tasks.path.stat().st_size) != self._tasks_bytes:
            book.tasks.refresh()
            self._tasks_bytes = size
        self._failures.refresh(self.path)
        reading = Reading.of(book, partial(Tally, read=self._sheets.read), self._standing)
        located = locate(reading.tally.columns, self._sheets.sheets, reading.tally.chosen)
        return Snapshot(version, reading, located, self._failures, self._vocabulary)

    def _standing(self, book: Book) -> list[FailedMark]:
        return list(self._failures.standing(book))


def identity_of(run: Path) -> tuple[int, int]:
    """What tells a run from another that was put in its place: its manifest is written once."""
    stat = (run / "run.json").stat()
    return stat.st_ino, stat.st_ctime_ns  # an inode may be given out again, but not with an old time


def stamp_of(run: Path) -> Stamp:
    """What changes when anything is written that a page shows."""
    files = [run / "plan.json", *(run / name for name in ("done", "rounds", "leases"))]
    with os.scandir(run / "journals") as entries:
        journals = sorted((e.name, e.stat().st_size, e.inode()) for e in entries if e.name.endswith(".jsonl"))
    return (*((path.name, path.stat().st_mtime_ns, 0) for path in files), *journals)


class Shelf:
    """The books of a folder that are open; the one that nobody asked for longest is closed first."""

    def __init__(self, folder: Folder, vocabulary: Vocabulary | None = None) -> None:
        self.folder, self._vocabulary = folder, vocabulary
        self._lock = threading.Lock()
        self._open: dict[str, Opened] = {}

    def look(self, name: str) -> Snapshot:
        """A run as it stands."""
        path = self.folder.path(name)
        with self._lock:
            opened = self._open.pop(name, None) or Opened(path, self._vocabulary)
            self._open[name] = opened
            while len(self._open) > MOST_OPEN:
                self._open.pop(next(iter(self._open)))
        return opened.look()

    def warm(self) -> None:
        """Read the only run before anyone asks: a browser takes a moment to start."""
        with suppress(RollbookError, OSError):  # what is wrong is said on the page
            self.look(self.folder.name).numbers  # noqa: B018

    def held(self, name: str) -> Opened | None:
        """A book that is open already."""
        return self._open.get(name)
