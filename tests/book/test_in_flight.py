"""Seats: who is in flight, readable after the worker is gone."""

from __future__ import annotations

from pathlib import Path

from rollbook.book.heartbeats import SLOTS_ADDED, InFlightKeys, read_in_flight
from support.books import make_book


def test_taken_seats_are_read_and_free_ones_are_not(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    keys = InFlightKeys(run, "w")
    first, _ = keys.add(1, 0), keys.add(2, 3)
    assert read_in_flight(run, "w") == {(1, 0), (2, 3)}
    keys.remove(first)
    assert read_in_flight(run, "w") == {(2, 3)}
    assert keys.add(10**9, 10**6) == first
    assert read_in_flight(run, "w") == {(2, 3), (10**9, 10**6)}


def test_there_is_always_one_more_seat(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    keys = InFlightKeys(run, "w")
    taken = {keys.add(row, 0) for row in range(3 * SLOTS_ADDED + 1)}
    assert len(taken) == 3 * SLOTS_ADDED + 1
    assert read_in_flight(run, "w") == {(row, 0) for row in range(3 * SLOTS_ADDED + 1)}


def test_an_orderly_end_leaves_nobody_in_flight(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    keys = InFlightKeys(run, "w")
    keys.add(1, 0)
    keys.close()
    assert read_in_flight(run, "w") == set()
    assert read_in_flight(run, "nobody") == set()
