"""Work that must be done one piece after another, by threads that others use as well."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from rollbook.sandbox.errors import Full, SandboxError

T = TypeVar("T")
MOST = 1000


class Line:
    """Pieces of work wait here without a thread; only the first in line has one."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = self._closed = False
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do this after all that came before it."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if len(self._waiting) >= MOST:
                raise Full(f"{MOST} turns wait for one session: await some of them first")
            self._waiting.append((future, work))
            first, self._busy = not self._busy, True
        if first:
            self._hire()
        return future

    def take(self) -> bool:
        """Be the one who works, in one's own thread, if nobody else does or waits; whoever gets a yes gives it back."""
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            was_busy, self._busy = self._busy, True
        return not was_busy

    def give_back(self) -> None:
        """Whoever came meanwhile is next."""
        self._go_on()

    def _hire(self) -> None:
        try:
            self._pool.submit(self._next)
        except RuntimeError:  # it is shut down
            self.close()

    def _next(self) -> None:
        with self._lock:
            if not self._waiting:
                self._busy = False
                return
            future, work = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                future.set_exception(error)
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            go_on = self._busy = bool(self._waiting)
        if go_on:  # not by `_busy`: whoever came since has hired somebody already
            self._hire()

    def close(self) -> None:
        """Nothing more is done; whoever waits is told."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(SandboxError("the sandbox is closed"))
