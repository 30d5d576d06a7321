"""Neighbours: each worker watches the few that come after it by name, so that a death is noticed while all are busy."""

from __future__ import annotations

from bisect import bisect
from pathlib import Path

from rollbook.book.lease import Leases
from rollbook.book.obituary import Obituary, publish_obituary, workers_and_dead
from rollbook.book.presence import Watch, read_presence
from rollbook.book.seal import Seals

WATCHED = 3
"""A death is missed only if so many before it by name die with it: then idle workers find its chunks at the end."""

RELISTED = 4
"""Who is there is asked at every fourth look only: hundreds of workers read that folder."""


class Neighbours:
    """The workers that one worker looks after."""

    def __init__(self, run: Path, worker: str, watch: Watch) -> None:
        self._run, self._worker, self._watch = run, worker, watch
        self._over: set[str] = set()
        self._nearest: list[str] = []
        self._looks = 0

    def look(self) -> None:
        """See to them, once a heartbeat; of one that is gone, say so and what it left."""
        if self._looks % RELISTED == 0:
            self._nearest = self._find()
        self._looks += 1
        for worker in self._nearest:
            presence = read_presence(self._run, worker)
            if not self._watch.gone(worker, presence):
                continue
            self._over.add(worker)
            self._looks = 0
            if chunks := self._left_by(worker):
                publish_obituary(self._run, worker, Obituary(presence.counter if presence else -1, chunks))

    def _find(self) -> list[str]:
        joined, dead = workers_and_dead(self._run)
        others = sorted(joined - dead - self._over - {self._worker})
        at = bisect(others, self._worker)
        return (others[at:] + others[:at])[:WATCHED]

    def _left_by(self, worker: str) -> dict[int, int]:
        """The chunks it held last, by number, with the epoch."""
        seals, leases = Seals(self._run), Leases(self._run)
        sealed = seals.list()  # before the leases: what is sealed in between then looks held, never free
        held = {number: epoch for number, epoch in leases.refresh().items() if number not in sealed or epoch > 1}
        mine = {number: epoch for number, epoch in held.items() if leases.lease(number, epoch).worker == worker}
        return {n: e for n, e in mine.items() if n not in sealed or seals.read(n).epoch < e}
