"""workers/ID.seats: which keys a worker has in flight, so that its heir knows what may have killed it.

One line of fixed width a seat, overwritten in place: `{"row":12,"sample":3}` while taken, blank while free. The page
cache outlives the process, so nothing is fsynced; after a power cut the worst is that nobody is suspected.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import msgspec

WIDTH = 48
BENCH = 256
_FREE = b" " * (WIDTH - 1) + b"\n"


class _Seat(msgspec.Struct):
    row: int
    sample: int


_decoder = msgspec.json.Decoder(_Seat)


class Seats:
    """The seats of a living worker: a mapped file, so that taking one costs no system call."""

    def __init__(self, run: Path, worker: str) -> None:
        self._file = os.open(run / "workers" / f"{worker}.seats", os.O_RDWR | os.O_CREAT, 0o644)
        self._free: list[int] = []
        self._map: mmap.mmap | None = None
        self._add_bench()

    def _add_bench(self) -> None:
        """Room for more; written out in full, since a mapped hole on a full disk would be a SIGBUS later."""
        held = os.fstat(self._file).st_size // WIDTH
        if os.pwrite(self._file, _FREE * BENCH, held * WIDTH) < WIDTH * BENCH:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._map:
            self._map.close()
        self._map = mmap.mmap(self._file, (held + BENCH) * WIDTH)
        self._free.extend(range(held + BENCH - 1, held - 1, -1))

    def take(self, row: int, sample: int) -> int:
        """Mark a key as in flight."""
        if not self._free:
            self._add_bench()
        seat = self._free.pop()
        text = b'{"row":%d,"sample":%d}' % (row, sample)
        assert self._map
        self._map[seat * WIDTH : seat * WIDTH + len(text)] = text
        return seat

    def leave(self, seat: int) -> None:
        """The key is no longer in flight."""
        assert self._map
        self._map[seat * WIDTH : (seat + 1) * WIDTH] = _FREE
        self._free.append(seat)

    def close(self) -> None:
        """An orderly end: nobody is in flight."""
        if self._map:
            self._map.close()
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
