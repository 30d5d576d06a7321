"""A worker's way through a book: which chunk to take next, and when there is nothing left to take."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from rollbook.book.book import Book
from rollbook.book.lease import Leases
from rollbook.book.ledger import Inheritance, Ledger, Past
from rollbook.book.obituary import read_obituary, workers_and_dead
from rollbook.book.presence import Watch, count_presences, read_presence
from rollbook.book.seal import Seals, reopened
from rollbook.core.manifest import Round
from rollbook.core.plan import Chunk
from rollbook.core.seal import Extent, Seal

LOOK_S = 1.0
LOOKS_IN_ALL = 10
"""How often all workers together look in a second: each has to ask the file system for all that is still open."""


class Claim(msgspec.Struct):
    """A chunk we own: what is still to do in it, and what its seal will say."""

    chunk: Chunk
    epoch: int
    todo: list[tuple[int, int, Past]]
    scored: int = 0
    failed: dict[str, int] = {}
    dropped: int = 0
    files: dict[str, Extent] = {}
    left: int = 0
    since_segment: int = 1
    resealed: bool = False


class Claims:
    """Hands a worker its chunks: those of the dead first, then fresh ones in their order, then what else is free.

    It looks at the disk, so it is asked in a thread, one question at a time; what it is told may come at any moment.
    """

    def __init__(
        self,
        book: Book,
        round_: Round,
        worker: str,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book, self._round = book, round_
        self.leases = Leases(book.path, worker, round_.number)
        self._ledger = Ledger(book, self.leases, round_)
        self._seals = Seals(book.path)
        self._watch = watch or Watch(book.path)
        self._clock = clock
        self._looked = self._heard = -math.inf
        self._pause = LOOK_S
        self._mourned: set[str] = set()
        self._left: dict[int, int] = {}
        self._fresh = 0
        self._held: set[int] = set()
        self._told: deque[tuple[int, Seal | None]] = deque()
        self._rounds = book.rounds()
        self._first = len(self._rounds) == 1
        self._order = book.chunks.side_by_side() if len(book.manifest.environments) > 1 else None
        self._refresh()

    def _look(self) -> bool:
        """Read leases and seals again: at most once a second, and no more often if hundreds would."""
        now = self._clock()
        if now - self._looked < self._pause:
            return False
        self._looked = now
        self._refresh()
        return True

    def _refresh(self) -> None:
        # Seals before leases: a chunk sealed in between then looks held, never free. Only a later round opens chunks
        # again for what failed in them: in a first one the names of the seals say enough.
        if self._first:
            self._seals.list()
        else:
            self._seals.refresh()
        self.leases.refresh()

    def next(self) -> Claim | None:
        """Claim a chunk; None if there is none to be had just now."""
        self._listen()
        return self._next_left() or self._next_fresh() or (self._next_orphan() if self._look() else None)

    def _next_left(self) -> Claim | None:
        """What the dead are known to have left: it was begun first, so it may be the biggest of all that is open."""
        now = self._clock()
        if now - self._heard >= self._pause:
            self._heard = now
            self._hear()
        if self._left:
            self.leases.refresh()  # everyone hears of the dead, and most find that others were there before
        while self._left:
            number, epoch = self._left.popitem()
            if self.leases.epochs.get(number) == epoch and self.leases.claim(number, epoch + 1):
                return self._claimed(number, epoch + 1)
        return None

    def _hear(self) -> None:
        joined, dead = workers_and_dead(self._book.path)
        self._pause = max(LOOK_S, len(joined) / LOOKS_IN_ALL)
        for worker in sorted(dead - self._mourned):
            self._mourned.add(worker)
            obituary, presence = read_obituary(self._book.path, worker), read_presence(self._book.path, worker)
            if obituary and (presence is None or presence.counter == obituary.counter):
                self._left.update(obituary.chunks)

    def _next_fresh(self) -> Claim | None:
        if self._fresh < len(self._book.chunks):
            self.leases.refresh()  # one reading of names is cheaper than a try at a chunk that another has
        while self._fresh < len(self._order or self._book.chunks):
            number, self._fresh = self._order[self._fresh] if self._order else self._fresh, self._fresh + 1
            if number in self.leases.epochs or number in self._seals.numbers:
                continue
            if self.leases.claim(number, 1):
                return self._claimed(number, 1)
            self.leases.refresh()  # where one was quicker, many may have been
        return None

    def _next_orphan(self) -> Claim | None:
        gone: dict[str, bool] = {}
        self._pause = max(LOOK_S, count_presences(self._book.path) / LOOKS_IN_ALL)
        for number in self.open_chunks():
            epoch = self.leases.epochs.get(number, 0)
            if number in self._held or not self._free(number, epoch, gone):
                continue
            if self.leases.claim(number, epoch + 1):
                self._looked = -math.inf  # there may be more where this came from
                return self._claimed(number, epoch + 1)
        return None

    def _free(self, number: int, epoch: int, gone: dict[str, bool]) -> bool:
        seal = self._seals.all.get(number)
        if epoch == 0 or (seal is not None and seal.epoch >= epoch):
            return True
        owner = self.leases.lease(number, epoch).worker
        if owner not in gone:
            gone[owner] = self._watch.gone(owner, read_presence(self._book.path, owner))
        return gone[owner]

    def _claimed(self, number: int, epoch: int) -> Claim:
        chunk = self._book.chunks[number]
        self._held.add(number)
        sealed = number in self._seals.numbers
        if sealed and number not in self._seals.all:
            self._seals.read(number)
        fresh = epoch == 1 and not sealed
        heritage = Inheritance() if fresh else self._ledger.inherit(number, epoch, self._seals.all)
        claim = Claim(chunk, epoch, [], dropped=heritage.dropped, files=heritage.files)
        claim.resealed = sealed
        for key in chunk:
            past = heritage.keys.get(key)
            if past is None:
                claim.todo.append((*key, Past()))
            elif past.scored:
                claim.scored += 1
            elif past.failed:
                claim.failed[past.failed] = claim.failed.get(past.failed, 0) + 1
            else:
                claim.todo.append((*key, past))
        claim.left = len(claim.todo)
        return claim

    def release(self, number: int) -> None:
        """We no longer work on a chunk: another worker has it."""
        self._told.append((number, None))

    def sealed(self, number: int, seal: Seal) -> None:
        """We sealed a chunk: no need to read that back from the disk."""
        self._told.append((number, seal))

    def _listen(self) -> None:
        while self._told:
            number, seal = self._told.popleft()
            self._held.discard(number)
            if seal is not None:
                self._seals.add(number, seal)

    def open_chunks(self) -> list[int]:
        """Chunks that this round still has to see to, as of the last look."""
        return [n for n in range(len(self._book.chunks)) if not self._closed(n)]

    def _closed(self, number: int) -> bool:
        return number in self._seals.numbers if self._first else closed(self._seals.all.get(number), self._rounds)

    def over(self) -> bool:
        """Whether every chunk is sealed for this round."""
        self._listen()
        return not self.open_chunks() or (self._look() and not self.open_chunks())


def closed(seal: Seal | None, rounds: Sequence[Round]) -> bool:
    """Whether a chunk is over: sealed, and nothing in it is tried again by a later round."""
    return seal is not None and not reopened(seal.failed, seal.round, rounds)


def nothing_left(book: Book, rounds: Sequence[Round]) -> bool:
    """Whether these rounds leave nothing to do in a book."""
    seals = Seals(book.path).refresh()
    return all(closed(seals.get(number), rounds) for number in range(len(book.chunks)))
