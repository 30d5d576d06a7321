"""done/NNNNN.json: chunks that are finished for their round, and exactly which bytes of which journals say so.

A seal is never replaced, whatever the leases say. A later round that opens the failures of a chunk again writes a seal
of its own, NNNNN.ROUND.json; the one of the highest round counts. A journal that has lost sealed bytes is refused,
never counted as if it were complete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.book.durable_files import link_new, sync_folder
from rollbook.core import FAILURE_KINDS, JSON_ERRORS, Extent, Round, Seal, decode_record, encode_record, reopens
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
            raise self._lost_error(f"{path} differs from what was sealed (its whole lines end at byte {end})", lost)

    def _lost_error(self, what: str, chunks: list[int]) -> BookError:
        found = [path.name for chunk in sorted(chunks) for path in list_seals(self._run, chunk)]
        names = ",".join(name.removesuffix(".json") for name in found)
        seals = self._run / "done" / (f"{{{names}}}.json" if len(found) > 1 else f"{names}.json")
        return BookError(
            f"{what}: restore it from a copy of the run, or `rm {seals}` and resume to run the lost rollouts again"
        )


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


def seal_path(run: Path, chunk: int, again_in: int = 0) -> Path:
    """Return the path of the first seal of a chunk, or of the one by a later round that opened it again."""
    return run / "done" / (f"{chunk:05}.{again_in}.json" if again_in else f"{chunk:05}.json")


def list_seals(run: Path, chunk: int) -> list[Path]:
    """Return the paths of all seals of a chunk, the first one first."""
    return [seal_path(run, chunk), *sorted((run / "done").glob(f"{chunk:05}.[0-9]*.json"))]


def write_seals(run: Path, seals: Mapping[int, tuple[Seal, bool]]) -> set[int]:
    """Seal chunks, each with whether an earlier round sealed it already; return those that had no such seal yet.

    A seal that exists stays: another worker took the chunk over and sealed it first.
    """
    written = {
        chunk
        for chunk, (seal, again) in seals.items()
        if link_new(seal_path(run, chunk, seal.round if again else 0), encode_record(seal))
    }
    if written:
        sync_folder(run / "done")
    return written


class Seals:
    """The seal of every chunk of a book that counts; each file is read once, since none ever changes."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._last_rounds: dict[int, int] = {}
        self.all: dict[int, Seal] = {}
        self.numbers: set[int] = set()

    def list_numbers(self) -> set[int]:
        """Return the sealed chunks, from the file names alone."""
        self._last_rounds = {}
        for name in os.listdir(self._run / "done"):
            number, _, again_in = name.removesuffix(".json").partition(".")
            if name.endswith(".json") and number.isdigit() and (again_in.isdigit() or not again_in):
                last = self._last_rounds.get(int(number), 0)
                self._last_rounds[int(number)] = max(last, int(again_in or 0))
        self.numbers = set(self._last_rounds)
        return self.numbers

    def refresh(self) -> dict[int, Seal]:
        """Read what was sealed since the last refresh."""
        for number in self.list_numbers():
            if number not in self.all or self.all[number].round < self._last_rounds[number]:
                self.read(number)
        return self.all

    def read(self, number: int) -> Seal:
        """Read the seal of a chunk that counts, as of the last listing."""
        self.add(number, read_seal(seal_path(self._run, number, self._last_rounds.get(number, 0))))
        return self.all[number]

    def find(self, number: int) -> Seal | None:
        """Return the seal of a chunk that counts, as the disk has it now."""
        if not seal_path(self._run, number).exists():
            return None
        if number not in self.all or self.all[number].failed:  # only failures are ever opened and sealed again
            self.list_numbers()
            self.read(number)
        return self.all[number]

    def add(self, number: int, seal: Seal) -> None:
        """Add a seal without reading it: our own need not be read back."""
        self.all[number] = seal
        self.numbers.add(number)


def read_seal(path: Path) -> Seal:
    """Read one seal."""
    try:
        seal = decode_record(path.read_bytes(), _decoder)
    except JSON_ERRORS as error:
        raise _damaged_error(path, str(error)) from None
    if unknown := sorted(seal.failed.keys() - FAILURE_KINDS.keys()):
        raise _damaged_error(path, f"{unknown[0]!r} is not a failure kind")
    return seal


def _damaged_error(path: Path, problem: str) -> BookError:
    return BookError(f"{path}: {problem}; restore it, or delete it to have the chunk counted again")


def find_reopened_kinds(kinds: Iterable[str], sealed_in: int, rounds: Sequence[Round]) -> set[str]:
    """Return the failure kinds of a chunk, sealed in one round, that a later round reopens."""
    later = [r.settings.retry for r in rounds if r.number > sealed_in]
    return {kind for kind in kinds if any(reopens(retry, kind) for retry in later)}
