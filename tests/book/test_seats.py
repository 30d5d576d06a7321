"""Seats: who is in flight, readable after the worker is gone."""

from __future__ import annotations

from pathlib import Path

from rollbook.book.seats import BENCH, Seats, read_seats
from support.books import make_book


def test_taken_seats_are_read_and_free_ones_are_not(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    seats = Seats(run, "w")
    first, _ = seats.take(1, 0), seats.take(2, 3)
    assert read_seats(run, "w") == {(1, 0), (2, 3)}
    seats.leave(first)
    assert read_seats(run, "w") == {(2, 3)}
    assert seats.take(10**9, 10**6) == first
    assert read_seats(run, "w") == {(2, 3), (10**9, 10**6)}


def test_there_is_always_one_more_seat(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    seats = Seats(run, "w")
    taken = {seats.take(row, 0) for row in range(3 * BENCH + 1)}
    assert len(taken) == 3 * BENCH + 1
    assert read_seats(run, "w") == {(row, 0) for row in range(3 * BENCH + 1)}


def test_an_orderly_end_leaves_nobody_in_flight(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    seats = Seats(run, "w")
    seats.take(1, 0)
    seats.close()
    assert read_seats(run, "w") == set()
    assert read_seats(run, "nobody") == set()
