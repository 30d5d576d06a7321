"""The sessions of a worker, each found by its id. A trainer never closes one: it expires."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rollbook.sandbox import SandboxError, Session
from rollbook.trainers.nemo_rl.sample import Asked, Refused
from rollbook.trainers.nemo_rl.tally import Tally


@dataclass
class Held:
    """A session that one turn at a time has to itself."""

    memory_mb: int
    working_dir: str | None = None
    session: Session | None = None
    turns: int = 0
    due: float = 0.0
    busy: bool = True
    given_up: bool = False

    def close(self) -> None:
        """The end of the session, if it ever began."""
        if self.session:
            with suppress(SandboxError):  # it went with its sandbox
                self.session.__exit__()


class Sessions:
    """At most so many, the longest idle first in line; a thread looks after those whose lease has run out."""

    def __init__(self, begin: Callable[[Asked], Session], lease_s: float, most: int, tally: Tally) -> None:
        self._begin, self._lease_s, self._most, self._tally = begin, lease_s, most, tally
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="code-sessions", daemon=True)
        self._sweeper.start()

    def __len__(self) -> int:
        return len(self._held)

    def claim(self, asked: Asked) -> Held:
        """The session of this id, for one turn: the one that is there, or a new one."""
        with self._lock:
            held = self._held.get(asked.session_id)
            if held:
                check(held, asked)
                held.busy = True
                return held
            crowded = self._make_room()
            held = self._held[asked.session_id] = Held(asked.memory_mb, asked.working_dir)
        for one in crowded:
            one.close()
        return self._opened(held, asked)

    def _opened(self, held: Held, asked: Asked) -> Held:
        try:
            held.session = self._begin(asked)
        except BaseException:
            with self._lock:
                self._held.pop(asked.session_id, None)
            raise
        self._tally.add("sessions_begun")
        return held

    def _make_room(self) -> list[Held]:
        """Let go of who was idle longest, if there is no room for one more."""
        idle = [name for name, held in self._held.items() if not held.busy]
        surplus = len(self._held) + 1 - self._most
        if surplus > len(idle):
            raise Refused(f"{self._most} sessions have a turn under way: allow more with max_sessions")
        names = idle[: max(0, surplus)]
        self._tally.add("sessions_crowded_out", len(names))
        return [self._held.pop(name) for name in names]

    def release(self, name: str) -> None:
        """The turn is over, and the lease begins anew; a session that was given up meanwhile is closed."""
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return
            held.busy, held.due = False, time.monotonic() + self._lease_s
            self._held.move_to_end(name)
            if not (held.given_up or self._over.is_set()):
                return
            del self._held[name]
        held.close()

    def give_up(self, name: str) -> None:
        """Nobody waits for this turn any more: what it makes is not to be gone on from."""
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return
            if held.busy:
                held.given_up = True
                return
            del self._held[name]  # its turn has ended just now
        held.close()

    def _sweep(self) -> None:
        while not self._over.wait(min(self._lease_s / 4, 5.0)):
            self.expire()

    def expire(self) -> None:
        """Close what nobody has used for the length of a lease."""
        now = time.monotonic()
        with self._lock:
            names = [name for name, held in self._held.items() if not held.busy and held.due < now]
            late = [self._held.pop(name) for name in names]
        for held in late:
            held.close()
        self._tally.add("sessions_expired", len(late))

    def close(self) -> None:
        """The end of all that are idle; one that has a turn under way ends after it."""
        self._over.set()
        with self._lock:
            names = [name for name, held in self._held.items() if not held.busy]
            idle = [self._held.pop(name) for name in names]
        for held in idle:
            held.close()
        self._sweeper.join(10)


def check(held: Held, asked: Asked) -> None:
    """Whether this sample may go on in this session."""
    name = asked.session_id
    if held.busy:
        raise Refused(f"session {name} has a turn under way: every sample needs an id of its own")
    if asked.turn is not None and asked.turn != held.turns:
        raise Refused(
            f"session {name} has had {held.turns} turns, this sample {asked.turn}: every sample needs an id of its own"
        )
    if asked.memory_mb != held.memory_mb:
        raise Refused(
            f"metadata memory_limit_bytes: the session began with {held.memory_mb} MiB and keeps them, "
            f"{asked.memory_mb} MiB cannot be had in the middle of it"
        )
    if asked.working_dir != held.working_dir:
        raise Refused(f"metadata working_dir={asked.working_dir}: the session works in {held.working_dir or 'its own'}")
