"""Progress for a job's log: a line a minute, and whatever is to be said once."""

from __future__ import annotations

import sys
import time

from rollbook.collect.progress import Progress

EVERY_S = 60.0


class JobLog:
    """Shows a worker's progress where nobody looks most of the time."""

    def __init__(self) -> None:
        self._next = 0.0
        self._unseen: Progress | None = None

    def start(self, total: int) -> None:
        """Say how much there is to do."""
        self.note(f"{total} rollouts in all")

    def update(self, progress: Progress) -> None:
        """Take note; a line when one is due."""
        self._unseen = progress
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            self.stop()

    def note(self, line: str) -> None:
        """Say something once."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stderr.flush()

    def stop(self) -> None:
        """Show what has not been shown."""
        if self._unseen is not None:
            self.note(line_of(self._unseen))
        self._unseen = None


def line_of(progress: Progress) -> str:
    """What this worker knows of the run, on one line."""
    failed = sum(progress.failed.values())
    counts = f"scored {progress.scored}, failed {failed}, open {progress.pending} of {progress.requested}"
    return f"{counts}; {progress.rate:.1f}/s, {progress.in_flight} in flight"
