"""A sealed chunk: over for its round, and exactly which bytes say so."""

from __future__ import annotations

import msgspec


class Extent(msgspec.Struct, frozen=True):
    """How far a file was read when the chunk was sealed, and the sha256 of those bytes."""

    bytes: int
    sha256: str


class Seal(msgspec.Struct, frozen=True):
    """The state of a sealed chunk. Lines behind the extents do not change it any more."""

    round: int
    epoch: int
    scored: int
    failed: dict[str, int]
    dropped: int
    files: dict[str, Extent]
