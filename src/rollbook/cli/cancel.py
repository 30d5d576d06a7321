"""`rollbook cancel`: end the jobs of a run; what is scored stays."""

from __future__ import annotations

import sys
from shlex import quote

from rollbook.cli import options as o


def command(run: o.Run) -> None:
    from rollbook.book.book import Book
    from rollbook.clusters.cancel import cancel_run

    path = Book(run).path
    ended = cancel_run(path)
    print(f"cancelled {ended} jobs" if ended else "no job was waiting or running")
    print(f"what is scored stays; go on with: rollbook resume {quote(str(path))}", file=sys.stderr)
