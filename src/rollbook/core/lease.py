"""A lease: one worker's claim on a chunk."""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """A claim's content: the same for every claim of a worker, so that they can share one file."""

    worker: str
    round: int
