"""Claim chunks: which one a worker claims next, and what earlier owners of a chunk left in it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from rollbook.book.book import Book
from rollbook.book.claim_order import read_lengths
from rollbook.book.counted_lines import FailedLineHeader, KeyMap, ScoredLineHeader, counted_limit, is_still_final
from rollbook.book.heartbeats import (
    count_workers,
    list_joined_and_gone,
    read_in_flight,
    read_presence,
    read_worker_gone,
)
from rollbook.book.json_lines import DamagedLine, LineReader
from rollbook.book.leases import Leases, WorkerMonitor, remove_dead_claim_files
from rollbook.book.seals import Seals, find_reopened_kinds, measure_extent, write_seals
from rollbook.core import Chunk, Extent, Round, Seal

MAX_WORKER_DEATHS = 3
_ScoredAt: TypeAlias = tuple[str, int, int, int]
_FailedAt: TypeAlias = tuple[str, int, int, FailedLineHeader]


class KeyHistory(msgspec.Struct):
    """The history of one key: scored, finally failed, or how often this round has tried it."""

    scored: bool = False
    failed: str | None = None
    tries: dict[str, int] = {}
    deaths: int = 0

    @property
    def attempts(self) -> int:
        """The number of attempts of this round."""
        return sum(self.tries.values())


class ChunkHistory(msgspec.Struct):
    """The keys of a chunk that were tried before, and the journal bytes that record it (for the seal)."""

    keys: dict[tuple[int, int], KeyHistory] = {}
    files: dict[str, Extent] = {}
    dropped: int = 0
    damaged: dict[str, list[int]] = {}


class _WorkerLines(msgspec.Struct):
    """The lines of one worker, without those of the chunks in `skipped`, which were closed when it was read."""

    skipped: set[int] = set()
    sizes: dict[str, int] = {}
    scored: dict[int, list[_ScoredAt]] = {}
    failed: dict[int, list[_FailedAt]] = {}
    extents: dict[str, Extent] = {}
    damaged: dict[str, list[int]] = {}


class TakeoverReader:
    """Reads dead workers' journals, each at most once while it does not change."""

    def __init__(self, book: Book, leases: Leases, round_: Round) -> None:
        self._book, self._leases, self._round = book, leases, round_
        self._lines_by_worker: dict[str, _WorkerLines] = {}
        self._keys: KeyMap | None = None

    def read_history(self, chunk: int, epoch: int, seals: dict[int, Seal]) -> ChunkHistory:
        """Return what the owners of a chunk before `epoch` left."""
        history = ChunkHistory()
        rounds, seal = self._book.rounds(), seals.get(chunk)
        for worker, first in sorted(self._leases.find_owners(chunk).items(), key=lambda item: item[1]):
            if first < epoch:
                found = self._read_worker(worker, seals, chunk)
                # What an earlier seal left out stays out: a line there may rank before one that the seal covers.
                names = [name for name in found.extents if counted_limit(seal, first, name)]
                history.files |= {name: found.extents[name] for name in names}
                history.damaged |= {name: found.damaged[name] for name in names if name in found.damaged}
                self._add_scored(history, found.scored.get(chunk, []), seal, first)
                self._add_failed(history, found.failed.get(chunk, []), seal, first, rounds)
                self._add_in_flight(history, chunk, worker, first)
        if seal:
            history.files |= seal.files
            history.damaged |= seal.damaged
        return history

    def _add_scored(self, history: ChunkHistory, lines: list[_ScoredAt], seal: Seal | None, epoch: int) -> None:
        for name, end, row, sample in lines:
            past = history.keys.setdefault((row, sample), KeyHistory())
            valid = end <= counted_limit(seal, epoch, name)
            history.dropped += past.scored or not valid
            past.scored |= valid

    def _add_failed(
        self, history: ChunkHistory, lines: list[_FailedAt], seal: Seal | None, epoch: int, rounds: list[Round]
    ) -> None:
        for name, end, row, line in lines:
            if end > counted_limit(seal, epoch, name):
                continue
            past = history.keys.setdefault((row, line.sample), KeyHistory())
            if line.round == self._round.number:
                past.tries[line.failure.kind] = past.tries.get(line.failure.kind, 0) + 1
            if line.final:
                past.failed = line.failure.kind if is_still_final(line, rounds) else None

    def _add_in_flight(self, history: ChunkHistory, chunk: int, worker: str, epoch: int) -> None:
        if self._leases.read_lease(chunk, epoch).round != self._round.number:
            return
        mine = set(self._book.chunks[chunk])
        for key in read_in_flight(self._book.path, worker) & mine:
            history.keys.setdefault(key, KeyHistory()).deaths += 1

    def _read_worker(self, worker: str, seals: dict[int, Seal], chunk: int) -> _WorkerLines:
        """Read a worker's lines, those of `chunk` in any case; closed chunks are skipped to save memory."""
        paths = sorted((self._book.path / "journals").glob(f"{worker}.*"))
        sizes = {p.name: p.stat().st_size for p in paths}
        held = self._lines_by_worker.get(worker)
        if held is None or held.sizes != sizes or chunk in held.skipped:
            skipped = {number for number, seal in seals.items() if not seal.failed and number != chunk}
            held = self._lines_by_worker[worker] = self._scan(paths, _WorkerLines(skipped, sizes))
        return held

    def _scan(self, paths: list[Path], found: _WorkerLines) -> _WorkerLines:
        self._keys = self._keys or KeyMap(self._book)
        for path in paths:
            if path.name.endswith(".failures.jsonl"):
                self._scan_failed(path, found)
            elif path.suffix == ".jsonl":
                self._scan_scored(path, found)
            found.extents[path.name] = measure_extent(path, found.sizes[path.name])
        return found

    def _scan_scored(self, path: Path, found: _WorkerLines) -> None:
        assert self._keys
        reader = LineReader(ScoredLineHeader, self._book.manifest.schema)
        for end, line in reader.read(path, found.sizes[path.name]):
            at = self._keys.find(line.task, line.sample)
            if at and at[2] not in found.skipped:
                found.scored.setdefault(at[2], []).append((path.name, end, at[0], line.sample))
        self._record_damage(path, found, reader.damaged)

    def _scan_failed(self, path: Path, found: _WorkerLines) -> None:
        assert self._keys
        reader = LineReader(FailedLineHeader, self._book.manifest.schema)
        for end, line in reader.read(path, found.sizes[path.name]):
            at = self._keys.find(line.task, line.sample)
            if at and at[2] not in found.skipped:
                found.failed.setdefault(at[2], []).append((path.name, end, at[0], line))
        self._record_damage(path, found, reader.damaged)

    def _record_damage(self, path: Path, found: _WorkerLines, damaged: list[DamagedLine]) -> None:
        if damaged:
            found.damaged[path.name] = [line.end for line in damaged]


REFRESH_S = 1.0
REFRESHES_PER_S = 10
"""Refreshes a second of all workers together: each one reads the state of every open chunk from the file system."""


class Claim(msgspec.Struct):
    """A chunk that this worker owns: the keys left to do, and what its seal will contain."""

    chunk: Chunk
    epoch: int
    todo: list[tuple[int, int, KeyHistory]]
    scored: int = 0
    failed: dict[str, int] = {}
    dropped: int = 0
    files: dict[str, Extent] = {}
    damaged: dict[str, list[int]] = {}
    keys_left: int = 0
    since_segment: int = 1
    resealed: bool = False


class ChunkClaimer:
    """Claims chunks for a worker: those of dead workers first, then fresh ones in order, then other free ones.

    The order is that of the plan, or the longest tasks first where lengths are known (`claim_order`).

    It reads the disk, so it is called in a thread, one call at a time; `release` and `seal` may come any time.
    """

    def __init__(
        self,
        book: Book,
        round_: Round,
        worker: str,
        monitor: WorkerMonitor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book, self._round = book, round_
        self.leases = Leases(book.path, worker, round_.number)
        self._takeover = TakeoverReader(book, self.leases, round_)
        self._seals = Seals(book.path)
        self._monitor = monitor or WorkerMonitor(book.path)
        self._clock = clock
        self._refreshed_at = self._gone_read_at = -math.inf
        self._pause = REFRESH_S
        self._known_gone: set[str] = set()
        self._left_behind: dict[int, tuple[str, int]] = {}
        self._fresh = 0
        self._owned: set[int] = set()
        self._messages: deque[tuple[int, Seal | None]] = deque()
        self._rounds = book.rounds()
        self._first = len(self._rounds) == 1
        self._order = book.chunks.interleave_parts() if len(book.manifest.environments) > 1 else None
        self._lengths = read_lengths(book.path, round_.number)
        if self._lengths is not None:
            self._order = self._lengths.order_chunks(book.chunks, self._order)
        self._refresh()

    def _refresh_if_due(self) -> bool:
        """Read leases and seals again, at most once a second, and less often with hundreds of workers."""
        now = self._clock()
        if now - self._refreshed_at < self._pause:
            return False
        self._refreshed_at = now
        self._refresh()
        return True

    def _refresh(self) -> None:
        # Seals before leases: a chunk sealed in between then looks held, never free. Only a later round opens chunks
        # again for what failed in them: in a first round the names of the seals suffice.
        if self._first:
            self._seals.list_numbers()
        else:
            self._seals.refresh()
        self.leases.refresh()

    def claim_next(self) -> Claim | None:
        """Claim a chunk; return None if none is free now."""
        self._apply_messages()
        return (
            self._claim_left_behind()
            or self._claim_fresh()
            or (self._claim_orphan() if self._refresh_if_due() else None)
        )

    def _claim_left_behind(self) -> Claim | None:
        """Claim a chunk of a dead worker: it was begun early, so it may be the biggest open one."""
        now = self._clock()
        if now - self._gone_read_at >= self._pause:
            self._gone_read_at = now
            self._read_gone_workers()
        if self._left_behind:
            self.leases.refresh()  # all workers read of a death; most find that another was faster
        while self._left_behind:
            number, (worker, epoch) = self._left_behind.popitem()
            # Read once more: since then it may have sent a heartbeat, and continued its chunk.
            is_left = self.leases.epochs.get(number) == epoch and number in self._read_chunks_left(worker)
            if is_left and (claim := self._claim_open(number, epoch + 1)):
                return claim
        return None

    def _read_gone_workers(self) -> None:
        joined, dead = list_joined_and_gone(self._book.path)
        self._pause = max(REFRESH_S, len(joined) / REFRESHES_PER_S)
        # Others may have taken this worker for gone while it was stopped; what they did not take over is still its own.
        for worker in sorted(dead - self._known_gone - {self.leases.worker}):
            self._known_gone.add(worker)
            for number, epoch in self._read_chunks_left(worker).items():
                self._left_behind[number] = worker, epoch

    def _read_chunks_left(self, worker: str) -> dict[int, int]:
        """Return the chunks that a worker left when it was gone; none if it has sent a heartbeat since."""
        notice, presence = read_worker_gone(self._book.path, worker), read_presence(self._book.path, worker)
        return notice.chunks if notice and (presence is None or presence.counter == notice.counter) else {}

    def _claim_fresh(self) -> Claim | None:
        if self._fresh < len(self._book.chunks):
            self.leases.refresh()  # listing names is cheaper than trying to claim a chunk that another owns
        while self._fresh < len(self._order or self._book.chunks):
            number, self._fresh = self._order[self._fresh] if self._order else self._fresh, self._fresh + 1
            if number in self.leases.epochs or number in self._seals.numbers:
                continue
            if claim := self._claim_open(number, 1):
                return claim
            self.leases.refresh()  # where one worker was faster, many may have been
        return None

    def _claim_orphan(self) -> Claim | None:
        gone: dict[str, bool] = {}
        self._pause = max(REFRESH_S, count_workers(self._book.path) / REFRESHES_PER_S)
        open_chunks = set(self.open_chunks())
        for number in self._order or range(len(self._book.chunks)):
            epoch = self.leases.epochs.get(number, 0)
            if number not in open_chunks or number in self._owned or not self._is_free(number, epoch, gone):
                continue
            if claim := self._claim_open(number, epoch + 1):
                self._refreshed_at = -math.inf  # the same worker may have left more
                return claim
        return None

    def _is_free(self, number: int, epoch: int, gone: dict[str, bool]) -> bool:
        seal = self._seals.all.get(number)
        if epoch == 0 or (seal is not None and seal.epoch >= epoch):
            return True
        owner = self.leases.read_lease(number, epoch).worker
        if owner not in gone:
            gone[owner] = self._monitor.is_gone(owner, read_presence(self._book.path, owner))
        return gone[owner]

    def _claim_open(self, number: int, epoch: int) -> Claim | None:
        """Claim a chunk, unless another worker is faster or a seal closes it, whatever leases and dead workers say.

        Its owner may seal it until our lease exists, so the disk is asked again after the claim.
        """
        if self._is_closed_on_disk(number) or not self.leases.claim(number, epoch) or self._is_closed_on_disk(number):
            return None
        return self._make_claim(number, epoch)

    def _is_closed_on_disk(self, number: int) -> bool:
        return is_closed(self._seals.find(number), self._rounds)

    def _make_claim(self, number: int, epoch: int) -> Claim:
        chunk = self._book.chunks[number]
        self._owned.add(number)
        sealed = number in self._seals.all
        fresh = epoch == 1 and not sealed
        history = ChunkHistory() if fresh else self._takeover.read_history(number, epoch, self._seals.all)
        claim = Claim(chunk, epoch, [], dropped=history.dropped, files=history.files, damaged=history.damaged)
        claim.resealed = sealed
        for key in chunk:
            past = history.keys.get(key)
            if past is None:
                claim.todo.append((*key, KeyHistory()))
            elif past.scored:
                claim.scored += 1
            elif past.failed:
                claim.failed[past.failed] = claim.failed.get(past.failed, 0) + 1
            else:
                claim.todo.append((*key, past))
        if (lengths := self._lengths) is not None:
            claim.todo.sort(key=lambda key: -lengths.length(key[0]))
        claim.keys_left = len(claim.todo)
        return claim

    def remove_claim_files(self) -> None:
        """Remove the hidden files that leases were linked from: this worker's, and those of workers that are gone."""
        self.leases.close()
        remove_dead_claim_files(self._book.path, self._monitor)

    def release(self, number: int) -> None:
        """Record that another worker has taken over a chunk of ours."""
        self._messages.append((number, None))

    def seal(self, claims: Sequence[tuple[Claim, Seal]]) -> None:
        """Seal chunks of ours; one that another worker has taken over is left to that worker."""
        mine = {
            claim.chunk.number: (seal, claim.resealed)
            for claim, seal in claims
            if not self.leases.is_lost(claim.chunk.number, claim.epoch)
        }
        written = write_seals(self._book.path, mine)
        for claim, seal in claims:  # our own seals are not read back from the disk
            number = claim.chunk.number
            self._messages.append((number, seal if number in written else None))

    def _apply_messages(self) -> None:
        while self._messages:
            number, seal = self._messages.popleft()
            self._owned.discard(number)
            if seal is not None:
                self._seals.add(number, seal)

    def open_chunks(self) -> list[int]:
        """Return the chunks that this round has not finished, as of the last refresh."""
        return [n for n in range(len(self._book.chunks)) if not self._is_closed(n)]

    def _is_closed(self, number: int) -> bool:
        return number in self._seals.numbers if self._first else is_closed(self._seals.all.get(number), self._rounds)

    def is_over(self) -> bool:
        """Return whether every chunk is sealed for this round."""
        self._apply_messages()
        return not self.open_chunks() or (self._refresh_if_due() and not self.open_chunks())


def is_closed(seal: Seal | None, rounds: Sequence[Round]) -> bool:
    """Return whether a chunk is sealed and no later round reopens a failure in it."""
    return seal is not None and not find_reopened_kinds(seal.failed, seal.round, rounds)


def is_finished(book: Book, rounds: Sequence[Round]) -> bool:
    """Return whether these rounds leave nothing to do in a book."""
    seals = Seals(book.path).refresh()
    return all(is_closed(seals.get(number), rounds) for number in range(len(book.chunks)))
