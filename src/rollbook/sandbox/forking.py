"""The wait for a fork that the holder of a session's state has been asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rollbook.sandbox.clock import children
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.process import Process, cpu_clock, is_asleep, is_dead
from rollbook.sandbox.stream import Stream
from rollbook.sandbox.watch import Watch

FORK_S, FORK_CPU_S, CPU_S_PER_GB = 10.0, 1.0, 0.5
LOOK_S, NAPS_MOST = 0.02, 20


class Forking(Watch):
    """A busy machine may take its time, but who is about to fork neither spins nor sleeps; nor does the fork.

    They run, or wait at the gate, where they are answered at once. Who uses more time than copying its memory could
    take, or is found asleep again and again, has something else in mind, and is killed long before the deadline.
    """

    def __init__(self, process: Process, limits: Limits, streams: Sequence[Stream]) -> None:
        super().__init__(process, limits, streams, FORK_S)
        self._cpu_before = process.cpu_s()
        self._enough_s = min(FORK_CPU_S, limits.seconds) + CPU_S_PER_GB * limits.memory_mb / 1024
        self._next, self._naps = time.monotonic() + LOOK_S, 0

    def _patience(self) -> float:
        return min(LOOK_S, super()._patience())

    def _look(self) -> None:
        super()._look()
        now = time.monotonic()
        if self.verdict or now < self._next:
            return
        self._next = now + LOOK_S
        forks = self._forks()
        self._naps += all(map(is_asleep, forks or [self._process.pid]))
        if self._naps > NAPS_MOST or self.cpu_seconds + sum(map(cpu_clock, forks)) > self._enough_s:
            self.kill("killed")

    def _forks(self) -> list[int]:
        """The fork that has not said hello; what is dead was another turn's."""
        return [pid for pid in children(self._process.pid) if not is_dead(pid)]
