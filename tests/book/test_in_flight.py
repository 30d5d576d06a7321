"""Seats: who is in flight, readable after the worker is gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

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


def test_slots_that_a_power_cut_tore_are_skipped(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    keys = InFlightKeys(run, "w")
    for row in range(3):
        keys.add(row, 1)
    path = run / "workers" / "w.seats"
    path.write_bytes(path.read_bytes().replace(b'{"row":0', b'{"r"', 1).replace(b'"row":2', b'"row":"', 1))
    assert read_in_flight(run, "w") == {(1, 1)}


def test_a_disk_without_room_for_more_slots_is_an_error_and_not_a_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped hole would kill the process later."""
    run = make_book(tmp_path / "run").path
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:-1], at))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        InFlightKeys(run, "w")
    assert caught.value.errno == errno.ENOSPC


def test_slots_are_files_that_others_may_read_and_not_write(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    before = os.umask(0)
    try:
        InFlightKeys(run, "w")
    finally:
        os.umask(before)
    assert (run / "workers" / "w.seats").stat().st_mode & 0o777 == 0o644


def test_the_last_slot_that_became_free_is_used_first(tmp_path: Path) -> None:
    keys = InFlightKeys(make_book(tmp_path / "run").path, "w")
    slots = [keys.add(row, 0) for row in range(3)]
    assert slots == [0, 1, 2]
    for slot in (0, 2):
        keys.remove(slot)
    assert [keys.add(9, 9), keys.add(9, 9), keys.add(9, 9)] == [2, 0, 3]


def test_closed_slots_keep_no_file_open(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path

    def is_open() -> bool:
        links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return str(run / "workers" / "w.seats") in links

    keys = InFlightKeys(run, "w")
    assert is_open()
    keys.close()
    assert not is_open()
    assert (run / "workers" / "w.seats").read_bytes() == b""
