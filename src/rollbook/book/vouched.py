"""What seals vouch for: a journal that has lost such bytes is refused, never counted as if it were whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
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
        """A file was read up to `end`: the bytes that were sealed must be there and be the same, torn ends included."""
        sealed = self._files.get(path.name, {})
        same = set(extents_of(path, sorted(extent.bytes for extent in sealed)))
        lost = [chunk for extent, chunks in sealed.items() if extent not in same for chunk in chunks]
        if lost:
            raise self._lost(f"{path} is not what was sealed (its whole lines end at byte {end})", lost)

    def _lost(self, what: str, chunks: list[int]) -> BookError:
        numbers = ",".join(f"{chunk:05}" for chunk in sorted(chunks))
        seals = self._run / "done" / (f"{{{numbers}}}.json" if len(chunks) > 1 else f"{numbers}.json")
        return BookError(f"{what}: restore it from a copy of the run, or `rm {seals}` and resume to run the lost again")


def extent_of(path: Path, size: int) -> Extent:
    """The size and hash of a file's first `size` bytes."""
    return next(extents_of(path, [size]))


def extents_of(path: Path, sizes: Iterable[int]) -> Iterator[Extent]:
    """The same for several sizes, smallest first, in one pass over the file."""
    digest, position = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        for size in sizes:
            while position < size and (block := file.read(min(size - position, 1 << 20))):
                digest.update(block)
                position += len(block)
            yield Extent(position, digest.hexdigest())
