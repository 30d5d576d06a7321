"""A process that reads journals of a big book: files and seals on standard input, their columns on standard output.

Run as `python -m rollbook.reports.column_reader`, started by `run_columns`. It imports little, since it has to start
before half of the book is read. It defines no class: what it pickles must have the same identity on the other side.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Mapping, Set
from pathlib import Path

from rollbook.book import read_rows
from rollbook.core import Extent
from rollbook.processes import die_with_parent
from rollbook.reports.column_cache import read_and_cache_columns


def main() -> None:
    """Read the requested journals and write their columns."""
    die_with_parent()
    gc.disable()  # nothing here makes cycles, and the process ends soon
    schema: int
    tasks: tuple[Path, int]
    files: Mapping[Path, Set[Extent]]
    schema, tasks, files = pickle.load(sys.stdin.buffer)
    rows = read_rows(*tasks)
    journals = [read_and_cache_columns(path, schema, tasks[0], rows, sealed) for path, sealed in files.items()]
    pickle.dump(journals, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
