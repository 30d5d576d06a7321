"""What seals vouch for: a journal that has lost such bytes is refused, never counted as if it were whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from rollbook.core.seal import Extent, Seal
from rollbook.errors import BookError


class Vouched:
    """Which chunks were sealed on how much of each journal file."""

    def __init__(self, run: Path, seals: Mapping[int, Seal]) -> None:
        self._run = run
        self._files: dict[str, dict[Extent, list[int]]] = {}
        for chunk, seal in seals.items():
            for name, extent in seal.files.items():
                self._files.setdefault(name, {}).setdefault(extent, []).append(chunk)

    def check_present(self, *, failures: bool) -> None:
        """No journal of scored lines, or of failed ones, may be missing."""
        for name, extents in self._files.items():
            path = self._run / "journals" / name
            if name.endswith(".jsonl") and name.endswith(".failures.jsonl") == failures and not path.exists():
                raise self._lost(f"{path} is missing", [chunk for chunks in extents.values() for chunk in chunks])

    def check_read(self, path: Path, end: int) -> None:
        """A file could be read up to `end`: what was sealed behind it must be a dead worker's torn end, unchanged."""
        behind = {extent: chunks for extent, chunks in self._files.get(path.name, {}).items() if extent.bytes > end}
        lost = [n for extent, chunks in behind.items() if extent_of(path, extent.bytes) != extent for n in chunks]
        if lost:
            raise self._lost(f"{path} was sealed further than its whole lines go ({end} bytes)", lost)

    def _lost(self, what: str, chunks: list[int]) -> BookError:
        numbers = ",".join(f"{chunk:05}" for chunk in sorted(chunks))
        seals = self._run / "done" / (f"{{{numbers}}}.json" if len(chunks) > 1 else f"{numbers}.json")
        return BookError(f"{what}: restore it from a copy of the run, or `rm {seals}` and resume to run the lost again")


def extent_of(path: Path, size: int) -> Extent:
    """The size and hash of a file's first `size` bytes."""
    digest = hashlib.sha256()
    left = size
    with open(path, "rb") as file:
        while left and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return Extent(size, digest.hexdigest())
