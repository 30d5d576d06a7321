"""workers/ID.seats: which keys a worker has in flight, so that its heir knows what may have killed it.

One line of fixed width a seat, overwritten in place: `{"row":12,"sample":3}` while taken, blank while free. The page
cache outlives the process, so nothing is fsynced; after a power cut the worst is that nobody is suspected.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

WIDTH = 48
_FREE = b" " * (WIDTH - 1) + b"\n"


class _Seat(msgspec.Struct):
    row: int
    sample: int


_decoder = msgspec.json.Decoder(_Seat)


class Seats:
    """The seats of a living worker."""

    def __init__(self, run: Path, worker: str) -> None:
        self._file = os.open(run / "workers" / f"{worker}.seats", os.O_RDWR | os.O_CREAT, 0o644)
        self._free: list[int] = []
        self._next = 0

    def take(self, row: int, sample: int) -> int:
        """Mark a key as in flight."""
        if self._free:
            seat = self._free.pop()
        else:
            seat, self._next = self._next, self._next + 1
        text = b'{"row":%d,"sample":%d}' % (row, sample)
        os.pwrite(self._file, text.ljust(WIDTH - 1) + b"\n", seat * WIDTH)
        return seat

    def leave(self, seat: int) -> None:
        """The key is no longer in flight."""
        os.pwrite(self._file, _FREE, seat * WIDTH)
        self._free.append(seat)

    def close(self) -> None:
        """An orderly end: nobody is in flight."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def read_seats(run: Path, worker: str) -> set[tuple[int, int]]:
    """The (row, sample) keys a worker had in flight when last heard of."""
    try:
        lines = (run / "workers" / f"{worker}.seats").read_bytes().split(b"\n")
    except FileNotFoundError:
        return set()
    taken = set()
    for line in lines:
        if line.strip():
            try:
                seat = _decoder.decode(line)
            except msgspec.DecodeError:
                continue  # half overwritten when the power went: it suspects nobody
            taken.add((seat.row, seat.sample))
    return taken
