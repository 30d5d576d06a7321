"""Deadlines for thousands at a time: one look a second at all of them, where a timer for each would cost more."""

from __future__ import annotations

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

LOOK_S = 1.0
EXACT_S = 30.0
"""Below this a deadline has a timer of its own; above it, nobody minds if it comes up to a second late."""


def within(seconds: float) -> asyncio.Timeout | Deadline:
    """`async with within(600):` raises TimeoutError if it takes longer, as asyncio.timeout does."""
    return asyncio.timeout(seconds) if seconds < EXACT_S else Deadline(seconds)


class Deadline:
    """What is cancelled when its time is over; `expired` tells that from a cancellation by others."""

    __slots__ = ("_cancelling", "_expired", "_look", "_seconds", "_task", "due")

    def __init__(self, seconds: float) -> None:
        self._seconds, self._expired = seconds, False

    def expired(self) -> bool:
        """Whether it was too late."""
        return self._expired

    async def __aenter__(self) -> Deadline:
        task = asyncio.current_task()
        assert task
        loop = asyncio.get_running_loop()
        self._task, self._cancelling = task, task.cancelling()
        self.due = loop.time() + self._seconds
        self._look = _looks.get(loop) or _looks.setdefault(loop, _Look(loop))
        self._look.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look.held.pop(self, None)
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if self._expired and self._task.uncancel() <= self._cancelling and cancelled:
            raise TimeoutError from error

    def expire(self) -> None:
        """Its time is over."""
        self._expired = True
        self._task.cancel()


class _Look:
    """The deadlines of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._later, self._time = loop.call_later, loop.time
        self._timer: asyncio.TimerHandle | None = None
        self.held: dict[Deadline, None] = {}

    def add(self, deadline: Deadline) -> None:
        self.held[deadline] = None
        if self._timer is None:
            self._timer = self._later(LOOK_S, self._look)

    def _look(self) -> None:
        now = self._time()
        for deadline in [held for held in self.held if held.due <= now]:
            del self.held[deadline]
            deadline.expire()
        self._timer = self._later(LOOK_S, self._look) if self.held else None


_looks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Look] = WeakKeyDictionary()
