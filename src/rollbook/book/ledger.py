"""What earlier owners of a chunk left behind: the start for whoever takes it over."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from rollbook.book.book import Book
from rollbook.book.lease import Leases
from rollbook.book.marks import FailedMark, KeyMap, ScoredMark, counts, stands
from rollbook.book.seats import read_seats
from rollbook.book.segment import LineReader
from rollbook.book.vouched import extent_of
from rollbook.core.manifest import Round
from rollbook.core.seal import Extent, Seal

DEATHS_ALLOWED = 3
_Mark: TypeAlias = tuple[str, int, int, int]
_Failed: TypeAlias = tuple[str, int, int, FailedMark]


class Past(msgspec.Struct):
    """What is known of one key: scored, failed for good, or tried so and so often by this round."""

    scored: bool = False
    failed: str | None = None
    tries: dict[str, int] = {}
    deaths: int = 0

    @property
    def attempts(self) -> int:
        """How many attempts this round has spent on it."""
        return sum(self.tries.values())


class Inheritance(msgspec.Struct):
    """A chunk's keys with a past, and the bytes that say so (for its seal)."""

    keys: dict[tuple[int, int], Past] = {}
    files: dict[str, Extent] = {}
    dropped: int = 0


class _Found(msgspec.Struct):
    """The marks of one worker in chunks that were open when it was read."""

    sizes: dict[str, int] = {}
    scored: dict[int, list[_Mark]] = {}
    failed: dict[int, list[_Failed]] = {}
    extents: dict[str, Extent] = {}


class Ledger:
    """Reads dead workers' journals, each at most once while it does not change."""

    def __init__(self, book: Book, leases: Leases, round_: Round) -> None:
        self._book, self._leases, self._round = book, leases, round_
        self._found: dict[str, _Found] = {}
        self._keys: KeyMap | None = None

    def inherit(self, chunk: int, epoch: int, sealed: dict[int, Seal]) -> Inheritance:
        """What a chunk's owners before `epoch` left."""
        heritage = Inheritance()
        rounds, seal = self._book.rounds(), sealed.get(chunk)
        for worker, first in sorted(self._leases.owners(chunk).items(), key=lambda item: item[1]):
            if first < epoch:
                found = self._read(worker, sealed)
                heritage.files |= found.extents
                self._take_scored(heritage, found.scored.get(chunk, []), seal, first)
                self._take_failed(heritage, found.failed.get(chunk, []), seal, first, rounds)
                self._take_seats(heritage, chunk, worker, first)
        heritage.files |= seal.files if seal else {}
        return heritage

    def _take_scored(self, heritage: Inheritance, marks: list[_Mark], seal: Seal | None, epoch: int) -> None:
        for name, end, row, sample in marks:
            past = heritage.keys.setdefault((row, sample), Past())
            valid = counts(seal, epoch, name, end)
            heritage.dropped += past.scored or not valid
            past.scored |= valid

    def _take_failed(
        self, heritage: Inheritance, marks: list[_Failed], seal: Seal | None, epoch: int, rounds: list[Round]
    ) -> None:
        for name, end, row, line in marks:
            if not counts(seal, epoch, name, end):
                continue
            past = heritage.keys.setdefault((row, line.sample), Past())
            if line.round == self._round.number:
                past.tries[line.failure.kind] = past.tries.get(line.failure.kind, 0) + 1
            if line.final:
                past.failed = line.failure.kind if stands(line, rounds) else None

    def _take_seats(self, heritage: Inheritance, chunk: int, worker: str, epoch: int) -> None:
        if self._leases.lease(chunk, epoch).round != self._round.number:
            return
        mine = set(self._book.chunks[chunk])
        for key in read_seats(self._book.path, worker) & mine:
            heritage.keys.setdefault(key, Past()).deaths += 1

    def _read(self, worker: str, sealed: dict[int, Seal]) -> _Found:
        paths = sorted((self._book.path / "journals").glob(f"{worker}.*"))
        sizes = {p.name: p.stat().st_size for p in paths}
        held = self._found.get(worker)
        if held is None or held.sizes != sizes:
            held = self._found[worker] = self._scan(paths, sizes, sealed)
        return held

    def _scan(self, paths: list[Path], sizes: dict[str, int], sealed: dict[int, Seal]) -> _Found:
        self._keys = self._keys or KeyMap(self._book)
        found = _Found(sizes=sizes)
        over = {number for number, seal in sealed.items() if not seal.failed}
        for path in paths:
            if path.name.endswith(".failures.jsonl"):
                self._scan_failed(path, found, over)
            elif path.suffix == ".jsonl":
                self._scan_scored(path, found, over)
            found.extents[path.name] = extent_of(path, sizes[path.name])
        return found

    def _scan_scored(self, path: Path, found: _Found, over: set[int]) -> None:
        assert self._keys
        for end, line in LineReader(ScoredMark).read(path, found.sizes[path.name]):
            at = self._keys.find(line.task, line.sample)
            if at and at[2] not in over:
                found.scored.setdefault(at[2], []).append((path.name, end, at[0], line.sample))

    def _scan_failed(self, path: Path, found: _Found, over: set[int]) -> None:
        assert self._keys
        for end, line in LineReader(FailedMark).read(path, found.sizes[path.name]):
            at = self._keys.find(line.task, line.sample)
            if at and at[2] not in over:
                found.failed.setdefault(at[2], []).append((path.name, end, at[0], line))
