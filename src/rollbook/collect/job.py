"""A job: one key on its way through a worker, and the desk that hands jobs out."""

from __future__ import annotations

from typing import Protocol

import msgspec

from rollbook.book.claims import Claim
from rollbook.book.ledger import Past
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task


class Job(msgspec.Struct):
    """A key to carry to its end, with what this round has tried already."""

    task: Task
    sample: int
    past: Past
    claim: Claim | None = None
    row: int = -1

    @property
    def name(self) -> str:
        """The key as one word."""
        return f"{self.task.id}#{self.sample}"


class Desk(Protocol):
    """Where a worker gets its jobs and leaves its marks: a book's shift, or a collector's memory."""

    async def next(self) -> Job | None:
        """The next job; waits while there may be one later, None when there will be none."""

    async def mark(self, job: Job, rollout: Rollout, final: bool) -> None:
        """Take in what an attempt came to; after a score or a final failure the job is over."""

    def idle(self) -> None:
        """Nothing is in flight just now: whatever waits for company need not wait."""
