"""Workers look after those next to them by name: a death is known, with what it left, while all others are busy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rollbook.book.book import Book
from rollbook.book.claims import ChunkClaimer, Claim
from rollbook.book.heartbeats import list_joined_and_gone, make_presence, read_worker_gone, write_heartbeat
from rollbook.book.leases import PEERS_WATCHED, Leases, PeerMonitor, WorkerMonitor
from rollbook.book.seals import write_seals
from rollbook.core import Presence, Round, Seal
from support.books import make_book, open_round


class FourWorkers:
    """Workers of other machines at one book, on a clock of their own."""

    def __init__(self, book: Book, names: str) -> None:
        self.book, self.now = book, 0.0
        self.round: Round = open_round(book)
        self.presences = {name: self._join(name) for name in names}
        self.monitors = {name: PeerMonitor(book.path, name, self.watch()) for name in names}
        self.claims = {name: self.claims_of(name) for name in names}

    def _join(self, name: str) -> Presence:
        presence = msgspec.structs.replace(make_presence(1), id=name, host=f"host-{name}")
        write_heartbeat(self.book.path, presence)
        return presence

    def watch(self) -> WorkerMonitor:
        return WorkerMonitor(clock=lambda: self.now, stale_s=180)

    def claims_of(self, name: str) -> ChunkClaimer:
        return ChunkClaimer(self.book, self.round, name, self.watch(), lambda: self.now)

    def beat(self, *names: str, for_s: float) -> None:
        """These live on for so long; the others say nothing."""
        end = self.now + for_s
        while self.now < end:
            self.now += 30
            for name in names:
                write_heartbeat(self.book.path, self.presences[name])
                self.monitors[name].check()

    def claim(self, name: str) -> Claim:
        claim = self.claims[name].claim_next()
        assert claim
        return claim


@pytest.fixture
def workers(tmp_path: Path) -> FourWorkers:
    return FourWorkers(make_book(tmp_path / "run", tasks=32, samples=2, workers=4), "abcd")


def test_what_the_dead_left_is_taken_before_anything_fresh(workers: FourWorkers) -> None:
    lost = workers.claim("b")
    workers.claim("a")
    workers.beat("a", "c", "d", for_s=120)
    assert read_worker_gone(workers.book.path, "b") is None, "it may only be slow"
    workers.beat("a", "c", "d", for_s=120)
    found = read_worker_gone(workers.book.path, "b")
    assert found
    assert found.chunks == {lost.chunk.number: 1}
    heir = workers.claim("d")
    assert (heir.chunk.number, heir.epoch) == (lost.chunk.number, 2)
    assert workers.claim("c").epoch == 1


def test_a_chunk_that_was_sealed_is_not_left(workers: FourWorkers) -> None:
    done, lost = workers.claim("b"), workers.claim("b")
    write_seals(workers.book.path, {done.chunk.number: (Seal(1, 1, 8, {}, 0, {}), False)})
    workers.beat("a", "c", "d", for_s=240)
    found = read_worker_gone(workers.book.path, "b")
    assert found
    assert found.chunks == {lost.chunk.number: 1}


def test_who_held_nothing_gets_no_gone_record_and_is_not_watched_for_ever(workers: FourWorkers) -> None:
    workers.beat("a", "c", "d", for_s=300)
    assert list_joined_and_gone(workers.book.path) == (set("abcd"), set())


def test_a_gone_record_of_one_that_lives_after_all_is_void(workers: FourWorkers) -> None:
    workers.claim("b")
    workers.beat("a", for_s=240)
    assert read_worker_gone(workers.book.path, "b")
    write_heartbeat(workers.book.path, workers.presences["b"])
    assert workers.claims_of("d").claim_next().epoch == 1


def test_the_folder_of_workers_is_listed_at_every_fourth_check_only(
    workers: FourWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[float] = []

    def list_and_count(run: Path) -> tuple[set[str], set[str]]:
        lists.append(workers.now)
        return list_joined_and_gone(run)

    monkeypatch.setattr("rollbook.book.leases.list_joined_and_gone", list_and_count)
    for _ in range(9):
        workers.now += 30
        for presence in workers.presences.values():
            write_heartbeat(workers.book.path, presence)
        workers.monitors["a"].check()
    assert lists == [30, 150, 270]


def test_the_watch_passes_on_when_a_watcher_dies_too(tmp_path: Path) -> None:
    workers = FourWorkers(make_book(tmp_path / "run", tasks=64, samples=2, workers=8), "abcdefgh")
    dead = "bcdef"
    for name in dead:
        workers.claim(name)
    assert len(dead) > PEERS_WATCHED
    workers.beat("a", "g", "h", for_s=480)
    assert list_joined_and_gone(workers.book.path)[1] == set(dead)
    assert {workers.claim("g").epoch for _ in dead} == {2}


def test_a_chunk_of_the_dead_is_taken_once(workers: FourWorkers) -> None:
    workers.claim("b")
    workers.beat("a", "c", "d", for_s=240)
    assert sorted(workers.claim(name).epoch for name in "acd") == [1, 1, 2]


def test_the_chunks_that_a_dead_worker_left_are_those_that_no_seal_of_its_own_closes(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=32, samples=2, workers=4)
    open_round(book)
    alive, dead = make_presence(1), msgspec.structs.replace(make_presence(1), state="left")
    for presence in (alive, dead):
        write_heartbeat(book.path, presence)
    leases = {name: Leases(book.path, name, 1) for name in (alive.id, dead.id)}
    for chunk, owners in enumerate(([dead], [dead], [alive, dead], [alive, dead], [alive, alive, dead], [dead, alive])):
        for epoch, owner in enumerate(owners, 1):
            assert leases[owner.id].claim(chunk, epoch)
    seals = {1: 1, 2: 1, 3: 2, 4: 2}  # the last epoch whose owner sealed the chunk
    write_seals(book.path, {chunk: (Seal(1, epoch, 1, {}, 0, {}), False) for chunk, epoch in seals.items()})
    PeerMonitor(book.path, alive.id, WorkerMonitor(book.path)).check()
    record = read_worker_gone(book.path, dead.id)
    assert record
    assert (record.chunks, record.counter) == ({0: 1, 2: 2, 4: 3}, dead.counter)
