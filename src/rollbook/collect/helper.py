"""The process that helps to read a big book: files and seals in on standard input, their sheets out, and no more.

It imports little, since it has to be up before half of the book is read.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Mapping, Set
from pathlib import Path

from rollbook.book.tasks import read_rows
from rollbook.collect.kept import read_and_keep
from rollbook.core.seal import Extent
from rollbook.processes.life import die_with_parent


def main() -> None:
    """Read what was asked for, and end."""
    die_with_parent()
    gc.disable()  # nothing here makes cycles, and the process ends soon
    tasks: tuple[Path, int]
    files: Mapping[Path, Set[Extent]]
    tasks, files = pickle.load(sys.stdin.buffer)
    rows = read_rows(*tasks)
    sheets = [read_and_keep(path, tasks[0], rows, sealed) for path, sealed in files.items()]
    pickle.dump(sheets, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
