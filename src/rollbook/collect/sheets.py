"""Reading many journal files at once: a big book is shared out among the processors, a small one is just read."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from rollbook.collect.sheet import Sheet, read_sheet
from rollbook.processes.child import module_argv
from rollbook.processes.life import PARENT, die_with_parent

WORTH_SHARING = 128 << 20
"""Below so many bytes, starting another process takes longer than it saves."""

MOST_READERS = 8
HEAD_START = 0.8
"""The share a helper gets of what we read ourselves: it has to be started first."""

SLOWEST_BYTES_S = 1 << 20


def read_sheets(paths: Sequence[Path]) -> Iterator[Sheet]:
    """The sheets of journal files, in their order; what a helper could not read is read here."""
    ours, *theirs = share_out(paths, readers_for(paths))
    with ExitStack() as stack:
        helpers = [stack.enter_context(_Helper(some)) for some in theirs]
        found = {path: read_sheet(path) for path in ours}
        for helper in helpers:
            found |= helper.sheets()
        for path in paths:
            yield found.pop(path) if path in found else read_sheet(path)


def readers_for(paths: Sequence[Path]) -> int:
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
    """Another process of ours that reads files; it writes what it found to a file without a name."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._within_s = 60 + sum(path.stat().st_size for path in paths) / SLOWEST_BYTES_S
        self._found: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> _Helper:
        environ = {**os.environ, PARENT: str(os.getpid())}
        argv = module_argv("rollbook.collect.sheets", *map(str, self._paths))
        self._popen = subprocess.Popen(argv, stdout=self._found, stderr=subprocess.DEVNULL, env=environ)
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait(10)
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


def main(paths: Sequence[str]) -> None:
    """The helper's whole life."""
    die_with_parent()
    pickle.dump([read_sheet(Path(path)) for path in paths], sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
