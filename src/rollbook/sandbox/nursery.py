"""Where sessions live: one zygote for all of them, started with the first."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rollbook.sandbox.errors import Full, SandboxError
from rollbook.sandbox.session import Session
from rollbook.sandbox.slot import Slot


class Nursery:
    """A bounded number of sessions. Between turns they hold descriptors and memory, but no thread and no slot."""

    def __init__(self, start: Callable[[], Slot], most: int) -> None:
        self._start, self._most = start, most
        self._slot: Slot | None = None
        self._sessions: set[Session] = set()
        self._lock = threading.Lock()
        self._closed = False

    def enter(self, session: Session) -> None:
        """Take a place."""
        with self._lock:
            if len(self._sessions) >= self._most:
                raise Full(f"{self._most} sessions are open: close some, or allow more with Sandbox(sessions=...)")
            self._sessions.add(session)

    def leave(self, session: Session) -> None:
        """Give it back."""
        with self._lock:
            self._sessions.discard(session)

    def slot(self) -> Slot:
        """The zygote; a new one when it has died, with all that it held."""
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._slot and not self._slot.alive:
                self._slot.close()
                self._slot = None
            self._slot = self._slot or self._start()
            return self._slot

    def kill(self) -> None:
        """End every session, so that no turn goes on; threads may still hold them."""
        with self._lock:
            self._closed = True
            if self._slot:
                self._slot.close()

    def close(self) -> None:
        """Let go of what the sessions held, once no thread works for them."""
        for session in list(self._sessions):
            session.abandon()
        self._sessions.clear()
