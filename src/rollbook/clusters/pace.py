"""How fast a run gets ahead, from the chunks that were sealed lately."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.core.seal import Seal

WINDOW_S = 600.0

_decoder = msgspec.json.Decoder(Seal)


class Pace(msgspec.Struct, frozen=True):
    """Rollouts a second over the last minutes, and seconds until the rest is done at that rate; None without one."""

    rate: float
    eta_s: float | None


def pace(run: Path, pending: int) -> Pace:
    """The pace of a run with so many rollouts to go."""
    rounds = Book(run).rounds()
    now = time.time()
    since = max(now - WINDOW_S, rounds[-1].started if rounds else 0.0)
    done = 0
    for path in (run / "done").glob("[0-9]*.json"):
        if path.stem.isdigit() and path.stat().st_mtime >= since:
            seal = _decoder.decode(path.read_bytes())
            done += seal.scored + sum(seal.failed.values())
    rate = done / max(now - since, 1.0)
    return Pace(rate, pending / rate if rate else None)
