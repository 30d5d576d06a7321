"""done/NNNNN.json: chunks that are finished for their round, and exactly which bytes of which journals say so.

A journal that has lost sealed bytes is refused, never counted as if it were complete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.book.durable_files import sync_folder, write_temporary
from rollbook.core import Extent, Round, Seal, encode_pretty, reopens
from rollbook.errors import BookError


class SealedExtents:
    """The extents of each journal file that seals cover, with their chunks."""

    def __init__(self, run: Path, seals: Mapping[int, Seal]) -> None:
        self._run = run
        self._files: dict[str, dict[Extent, list[int]]] = {}
        for chunk, seal in seals.items():
            for name, extent in seal.files.items():
                self._files.setdefault(name, {}).setdefault(extent, []).append(chunk)

    def check_present(self, *, failures: bool) -> None:
        """Refuse a run in which a sealed journal of scored lines, or of failed ones, is missing."""
        for name, extents in self._files.items():
            path = self._run / "journals" / name
            if name.endswith(".jsonl") and name.endswith(".failures.jsonl") == failures and not path.exists():
                raise self._lost_error(f"{path} is missing", [chunk for chunks in extents.values() for chunk in chunks])

    def check_read(self, path: Path, end: int) -> None:
        """Refuse a file whose sealed bytes are missing or changed, torn ends included; its whole lines end at `end`."""
        sealed = self._files.get(path.name, {})
        same = set(measure_extents(path, sorted(extent.bytes for extent in sealed)))
        lost = [chunk for extent, chunks in sealed.items() if extent not in same for chunk in chunks]
        if lost:
            raise self._lost_error(f"{path} is not what was sealed (its whole lines end at byte {end})", lost)

    def _lost_error(self, what: str, chunks: list[int]) -> BookError:
        numbers = ",".join(f"{chunk:05}" for chunk in sorted(chunks))
        seals = self._run / "done" / (f"{{{numbers}}}.json" if len(chunks) > 1 else f"{numbers}.json")
        return BookError(f"{what}: restore it from a copy of the run, or `rm {seals}` and resume to run the lost again")


def measure_extent(path: Path, size: int) -> Extent:
    """Return the size and hash of a file's first `size` bytes."""
    return next(measure_extents(path, [size]))


def measure_extents(path: Path, sizes: Iterable[int]) -> Iterator[Extent]:
    """Yield the extents for several sizes, smallest first, in one pass over the file."""
    digest, position = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        for size in sizes:
            while position < size and (block := file.read(min(size - position, 1 << 20))):
                digest.update(block)
                position += len(block)
            yield Extent(position, digest.hexdigest())


_decoder = msgspec.json.Decoder(Seal)


def seal_path(run: Path, chunk: int) -> Path:
    """Return the path of the seal of a chunk."""
    return run / "done" / f"{chunk:05}.json"


def write_seals(run: Path, seals: dict[int, tuple[Seal, bool]]) -> None:
    """Seal chunks, each with whether it was sealed by an earlier round; a first seal never replaces another."""
    for chunk, (seal, again) in seals.items():
        path = seal_path(run, chunk)
        aside = write_temporary(path, encode_pretty(seal))
        if again:
            os.replace(aside, path)
            continue
        try:
            os.link(aside, path)
        except FileExistsError:
            pass  # another worker took the chunk over and sealed it first: its seal stays
        os.unlink(aside)
    if seals:
        sync_folder(run / "done")


class Seals:
    """All seals of a book; only changed files are read again."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._seen: dict[int, tuple[int, int]] = {}
        self.all: dict[int, Seal] = {}
        self.numbers: set[int] = set()

    def list_numbers(self) -> set[int]:
        """Return the sealed chunks, from the file names alone."""
        parts = (name.partition(".") for name in os.listdir(self._run / "done"))
        self.numbers = {int(number) for number, _, ending in parts if ending == "json" and number.isdigit()}
        return self.numbers

    def refresh(self) -> dict[int, Seal]:
        """Read what was sealed since the last refresh."""
        for number in self.list_numbers():
            if not self._is_final(number):
                self._look_at(number, seal_path(self._run, number))
        return self.all

    def read(self, number: int) -> Seal:
        """Read one seal."""
        self.add(number, _read_seal(seal_path(self._run, number)))
        return self.all[number]

    def add(self, number: int, seal: Seal) -> None:
        """Add a seal without reading it: our own need not be read back."""
        self.all[number] = seal
        self.numbers.add(number)

    def _is_final(self, number: int) -> bool:
        """Return whether a seal will never change: only failures are tried again."""
        return number in self.all and not self.all[number].failed

    def _look_at(self, number: int, path: Path) -> None:
        stat = path.stat()
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if self._seen.get(number) != stamp:
            self.all[number] = _read_seal(path)
            self._seen[number] = stamp


def _read_seal(path: Path) -> Seal:
    try:
        return _decoder.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise BookError(f"{path}: {error}; delete it to have the chunk counted again") from None


def find_reopened_kinds(kinds: Iterable[str], sealed_in: int, rounds: Sequence[Round]) -> set[str]:
    """Return the failure kinds of a chunk, sealed in one round, that a later round reopens."""
    later = [r.settings.retry for r in rounds if r.number > sealed_in]
    return {kind for kind in kinds if any(reopens(retry, kind) for retry in later)}
