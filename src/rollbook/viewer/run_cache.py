"""The runs of a folder, kept open: when files have changed, only what is new is read.

Runs are named by their path in the folder, and nothing outside the folder is ever opened.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from rollbook.book import Book
from rollbook.errors import BookError, RollbookError, UsageError
from rollbook.reports import RunColumns, RunData
from rollbook.viewer.journal_index import FailureFollower, JournalFollower, build_rollout_index
from rollbook.viewer.snapshot import Snapshot, replace_surrogates
from rollbook.viewer.vocabulary import Vocabulary

MAX_DEPTH = 4
MAX_RUNS = 5000
CHECKED_FOLDERS = ("", "journals", "rounds", "workers", "leases", "done", "index", "media")


class RunFolder:
    """A folder of runs, or one run. A run's name is its path within the folder, written with slashes."""

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path).resolve()
        if not self.root.is_dir():
            raise UsageError(f"{path} is not a folder: name a run directory, or a folder that holds some")
        self.name = replace_surrogates(self.root.name)
        self.single = (self.root / "run.json").is_file()
        if not self.single and not next(self.names(), None):
            raise UsageError(f"{path} holds no run: no folder in it has a run.json; make one with `rollbook run`")

    def names(self) -> Iterator[str]:
        """Yield every run in alphabetical order; symbolic links are not followed."""
        if self.single:
            yield self.name
            return
        found = 0
        for at, folders, files in os.walk(self.root):
            depth = len(Path(at).relative_to(self.root).parts)
            if "run.json" in files:
                folders.clear()
                found += 1
                yield Path(at).relative_to(self.root).as_posix()
            elif depth >= MAX_DEPTH:
                folders.clear()
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if found >= MAX_RUNS:
                return

    def path(self, name: str) -> Path:
        """Return the path of a run; raise a UsageError if there is none of that name."""
        path = self._find_run(name)
        if path is None:
            raise UsageError(f"no run is called {name[:200]!r} here")
        self.check_links(path)
        return path

    def _find_run(self, name: str) -> Path | None:
        if self.single:
            return self.root if name == self.name else None
        parts = name.split("/")
        if len(parts) > MAX_DEPTH or any(not part or part.startswith(".") for part in parts):
            return None
        path = self.root.joinpath(*parts)
        try:
            return path if path.resolve() == path and (path / "run.json").is_file() else None
        except (OSError, ValueError):
            return None

    def check_links(self, run: Path) -> None:
        """Refuse a run with a symbolic link that leads out of the folder."""
        for folder in CHECKED_FOLDERS:
            if not (run / folder).is_dir():
                continue
            for entry in os.scandir(run / folder):
                if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(self.root):
                    raise BookError(f"{Path(entry.path).relative_to(self.root)} is a link that leads out of the folder")


PAUSE_FACTOR = 4
"""The pause after a read, as a multiple of its duration: following a run must not slow the run."""

MAX_OPEN = 8
FileStamp = tuple[tuple[str | int, ...], ...]


class CachedRun:
    """One book and its newest snapshot."""

    def __init__(self, path: Path, vocabulary: Vocabulary | None = None) -> None:
        self.path, self._vocabulary = path, vocabulary
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._stamp: FileStamp = ()
        self._next = 0.0
        self._identity = (0, 0)
        self._open()

    def _open(self) -> None:
        identity = read_identity(self.path)
        self._book = Book(self.path)
        self._book.check_tasks()
        self._tasks_bytes = self._book.tasks.path.stat().st_size
        weakref.finalize(self._book, self._book.tasks.close)  # snapshots may outlive us
        self._journals, self._failures = JournalFollower(), FailureFollower(self._book.manifest.schema)
        self._identity = identity  # last: after an error the run is opened again

    def take_snapshot(self) -> Snapshot:
        """Return the current run; read again only if something was written since."""
        with self._lock:
            begun = time.monotonic()
            replaced = read_identity(self.path) != self._identity
            if self._snapshot is not None and begun < self._next and not replaced:
                return self._snapshot
            if replaced:
                self._open()
            stamp = (self._identity, *read_stamp(self.path))
            if self._snapshot is None or stamp != self._stamp:
                self._snapshot = self._take_with_retry((self._snapshot.version if self._snapshot else 0) + 1)
                self._stamp = stamp
                self._next = time.monotonic() + PAUSE_FACTOR * (time.monotonic() - begun)
            return self._snapshot

    def _take_with_retry(self, version: int) -> Snapshot:
        try:
            return self._take(version)
        except BookError:  # a plan or task may have been written while we read; a second read decides
            self._open()
            return self._take(version)

    def _take(self, version: int) -> Snapshot:
        book = self._book
        book.load_plan()
        if (size := book.tasks.path.stat().st_size) != self._tasks_bytes:
            book.tasks.refresh()
            self._tasks_bytes = size
        self._failures.refresh(self.path)
        reading = RunData.from_open_book(book, partial(RunColumns, read=self._journals.read), self._failures.list_final)
        located = build_rollout_index(reading.scored.columns, self._journals.journals, reading.scored.chosen)
        return Snapshot(version, reading, located, self._failures, self._vocabulary)


def read_identity(run: Path) -> tuple[int, int]:
    """Return what distinguishes a run from another that replaced it: its manifest is written once."""
    stat = (run / "run.json").stat()
    return stat.st_ino, stat.st_ctime_ns  # an inode may be reused, but not with an old time


def read_stamp(run: Path) -> FileStamp:
    """Return a value that changes when anything is written that a page shows."""
    files = [run / "plan.json", *(run / name for name in ("done", "rounds", "leases"))]
    with os.scandir(run / "journals") as entries:
        journals = sorted((e.name, e.stat().st_size, e.inode()) for e in entries if e.name.endswith(".jsonl"))
    return (*((path.name, path.stat().st_mtime_ns, 0) for path in files), *journals)


class RunCache:
    """The open books of a folder; the least recently used one is closed first."""

    def __init__(self, folder: RunFolder, vocabulary: Vocabulary | None = None) -> None:
        self.folder, self._vocabulary = folder, vocabulary
        self._lock = threading.Lock()
        self._open: dict[str, CachedRun] = {}

    def take_snapshot(self, name: str) -> Snapshot:
        """Return the current snapshot of a run."""
        path = self.folder.path(name)
        with self._lock:
            opened = self._open.pop(name, None) or CachedRun(path, self._vocabulary)
            self._open[name] = opened
            while len(self._open) > MAX_OPEN:
                self._open.pop(next(iter(self._open)))
        return opened.take_snapshot()

    def warm(self) -> None:
        """Read the only run before the first request: a browser takes a moment to start."""
        with suppress(RollbookError, OSError):  # the page shows the error
            self.take_snapshot(self.folder.name).numbers  # noqa: B018

    def find_open(self, name: str) -> CachedRun | None:
        """Return a run that is open already."""
        return self._open.get(name)
