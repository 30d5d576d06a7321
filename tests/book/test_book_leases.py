"""Claims: one link, one owner."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rollbook.book.leases import Leases
from rollbook.errors import BookError
from support.books import make_book


def test_only_one_of_two_gets_a_chunk(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    a, b = Leases(run, "a", 1), Leases(run, "b", 1)
    assert a.claim(0, 1)
    assert not b.claim(0, 1)
    b.refresh()
    assert b.read_lease(0, 1).worker == "a"


def test_a_takeover_is_the_next_epoch_and_the_old_owner_can_tell(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    a, b = Leases(run, "a", 1), Leases(run, "b", 1)
    a.claim(3, 1)
    assert not a.is_lost(3, 1)
    assert b.claim(3, 2)
    assert a.is_lost(3, 1)
    a.refresh()
    assert a.find_owners(3) == {"a": 1, "b": 2}


def test_a_claim_whose_answer_was_lost_is_still_ours(tmp_path: Path) -> None:
    leases = Leases(make_book(tmp_path / "run").path, "a", 1)
    assert leases.claim(0, 1)
    assert leases.claim(0, 1)


def test_a_lease_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    for epoch, name in enumerate("abc", 1):
        assert Leases(run, name, 1).claim(0, epoch)
    (run / "leases" / "00000.2").unlink()
    reader = Leases(run)
    reader.refresh()
    with pytest.raises(BookError, match=r"leases/00000\.2 is missing: restore it"):
        reader.find_owners(0)


def test_a_worker_whose_hidden_file_was_removed_claims_with_a_new_one(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    leases, other = Leases(run, "a", 1), Leases(run, "b", 1)
    assert leases.claim(0, 1)
    other.remove_claim_files_of(lambda worker: worker == "a")
    assert [path.name for path in (run / "leases").iterdir()] == ["00000.1"]
    assert leases.claim(1, 1)
    assert not other.claim(1, 1)


def test_who_leaves_leaves_leases_and_no_hidden_files(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    leases = Leases(run, "a", 1)
    assert leases.claim(0, 1)
    assert leases.claim(1, 1)
    leases.close()
    assert sorted(path.name for path in (run / "leases").iterdir()) == ["00000.1", "00001.1"]
    reader = Leases(run)
    reader.refresh()
    assert [reader.read_lease(chunk, 1).worker for chunk in (0, 1)] == ["a", "a"]
    assert leases.claim(2, 1)


def test_two_workers_racing_for_one_claim_a_thousand_times(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    wins: dict[str, set[int]] = {"a": set(), "b": set()}
    barrier = threading.Barrier(2)

    def race(name: str) -> None:
        leases = Leases(run, name, 1)
        for chunk in range(1000):
            barrier.wait(timeout=30)
            if leases.claim(chunk, 1):
                wins[name].add(chunk)

    racers = [threading.Thread(target=race, args=(name,)) for name in wins]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(timeout=60)
    assert wins["a"] | wins["b"] == set(range(1000))
    assert not wins["a"] & wins["b"]
    reader = Leases(run)
    reader.refresh()
    assert all(reader.read_lease(chunk, 1).worker == ("a" if chunk in wins["a"] else "b") for chunk in range(1000))
