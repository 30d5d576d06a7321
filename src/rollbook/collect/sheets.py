"""Reading many journal files at once: a big book is shared out among the processors, a small one is just read."""

from __future__ import annotations

import os
import pickle
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from rollbook.book.tasks import TaskFile, read_rows
from rollbook.collect.kept import kept_sheet, read_and_keep
from rollbook.collect.sheet import Sheet
from rollbook.core.seal import Extent
from rollbook.processes.child import module_argv
from rollbook.processes.life import PARENT

WORTH_SHARING = 128 << 20
"""Below so many bytes, starting another process takes longer than it saves."""

MOST_READERS = 8
HEAD_START = 0.8
"""The share a helper gets of what we read ourselves: it has to be started first."""

SLOWEST_BYTES_S = 1 << 20


def read_sheets(tasks: TaskFile, files: Mapping[Path, Set[Extent]]) -> Iterator[Sheet]:
    """The sheets of a book's journal files, in their order; each file with the extents at which it was sealed.

    Those that are kept are not read again. What a helper could not read is read here.
    """
    found = {path: sheet for path, sealed in files.items() if (sheet := kept_sheet(path, tasks.path, sealed))}
    unread = {path: sealed for path, sealed in files.items() if path not in found}
    ours, *theirs = share_out(list(unread), readers_for(unread))
    with ExitStack() as stack:
        helpers = [stack.enter_context(_Helper(tasks, {path: files[path] for path in some})) for some in theirs]
        rows = read_rows(tasks.path, len(tasks)) if unread else {}  # not `tasks.rows`, which would stay
        found |= {path: read_and_keep(path, tasks.path, rows, files[path]) for path in ours}
        for helper in helpers:
            found |= helper.sheets()
        for path, sealed in files.items():
            yield found.pop(path) if path in found else read_and_keep(path, tasks.path, rows, sealed)


def readers_for(paths: Iterable[Path]) -> int:
    """How many processes reading these files is worth."""
    size = sum(path.stat().st_size for path in paths)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_READERS, cores, size // (WORTH_SHARING // 2)))


def share_out(paths: Sequence[Path], readers: int) -> list[list[Path]]:
    """The files in so many shares of like size, the first one ours and a little larger; big files first."""
    shares: list[list[Path]] = [[] for _ in range(readers)]
    loads = [0.0] * readers
    for path in sorted(paths, key=lambda path: -path.stat().st_size):
        at = min(range(readers), key=lambda at: loads[at])
        shares[at].append(path)
        loads[at] += path.stat().st_size / (HEAD_START if at else 1)
    return shares


class _Helper:
    """Another process of ours that reads files (helper.py); what it found comes back in a file without a name."""

    def __init__(self, tasks: TaskFile, files: Mapping[Path, Set[Extent]]) -> None:
        self._within_s = 60 + sum(path.stat().st_size for path in files) / SLOWEST_BYTES_S
        self._asked, self._found = (_nameless() for _ in range(2))
        pickle.dump(((tasks.path, len(tasks)), files), self._asked)
        self._asked.seek(0)

    def __enter__(self) -> _Helper:
        environ = {**os.environ, PARENT: str(os.getpid())}
        argv = module_argv("rollbook.collect.helper")
        self._popen = subprocess.Popen(
            argv, stdin=self._asked, stdout=self._found, stderr=subprocess.DEVNULL, env=environ
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait(10)
        self._asked.close()
        self._found.close()

    def sheets(self) -> dict[Path, Sheet]:
        """What it read; nothing if it failed, since reading here says best what is wrong."""
        try:
            if self._popen.wait(self._within_s):
                return {}
        except subprocess.TimeoutExpired:
            return {}
        self._found.seek(0)
        sheets: list[Sheet] = pickle.load(self._found)
        return {sheet.path: sheet for sheet in sheets}


def _nameless() -> IO[bytes]:
    return tempfile.TemporaryFile()
