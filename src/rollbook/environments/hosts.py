"""The environment processes of a worker: more when there is work, replaced when one dies, never above their bound."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

from rollbook.core.manifest import EnvironmentSpec, Limits
from rollbook.environments.frames import Call, Reply
from rollbook.environments.process import HostGone, HostProcess, Waiting
from rollbook.errors import RolloutFailed

QUICK_S = 0.005
DEPTH = 8
STARTS_ALLOWED = 3
LOOK_S = 0.05
PATIENCE_S = 0.05
"""How long calls may queue before another process is started: a burst of quick ones is over by then."""


class SeatLost(Exception):
    """The process a rollout's state lived in died of another rollout's call: start again, no attempt is lost."""


class Hosts:
    """Calls without state go to whichever process is free; a seated rollout's calls all go to one."""

    def __init__(
        self, spec: EnvironmentSpec, limits: Limits, *, run: Path | None = None, most: int = 2, log: Path | None = None
    ) -> None:
        self._spec, self._limits, self._run, self._most, self._log = spec, limits, run, most, log
        self._processes: list[HostProcess] = []
        self._queue: deque[Waiting] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._failed_starts = 0
        self._closed = False
        self._mean_s = 0.0
        self._look: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Start the first process, so that an environment that does not load is known before any rollout."""
        await self._start()

    async def _start(self) -> None:
        process = HostProcess(self._feed, self._gone)
        try:
            await process.start(self._spec, self._run, self._limits, self._log)
        except BaseException:
            await process.stop()
            raise
        self._failed_starts = 0
        self._processes.append(process)
        self._feed(process)

    def _grow(self) -> None:
        """One more process, if there is room for it; errors surface in whoever waits."""
        if self._closed or self._starting or len(self._processes) >= self._most:
            return
        task = asyncio.create_task(self._start(), name="environment process")
        self._starting.add(task)
        task.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._failed_starts += 1
        if self._failed_starts >= STARTS_ALLOWED and not self._processes:
            while self._queue:
                waiting = self._queue.popleft()
                if not waiting.future.done():
                    waiting.future.set_exception(RolloutFailed("environment_error", "environment", str(error)))
            self._failed_starts = 0
        elif not self._processes:
            self._grow()

    def _gone(self, process: HostProcess) -> None:
        if process not in self._processes:
            return  # it never came up, and whoever started it knows
        self._processes.remove(process)
        if self._queue or not self._processes:
            self._grow()

    @property
    def _depth(self) -> int:
        """Quick calls are sent ahead, so that the process never idles; behind a slow one nobody should wait."""
        return DEPTH if self._mean_s < QUICK_S else 1

    def _feed(self, process: HostProcess) -> None:
        while self._queue and process.alive and process.waiting < self._depth:
            waiting = self._queue.popleft()
            if not waiting.future.done():
                process.send(waiting)

    def _submit(self, waiting: Waiting) -> None:
        best = min((p for p in self._processes if p.alive), key=lambda p: p.waiting, default=None)
        if best is not None and best.waiting < self._depth:
            best.send(waiting)
            return
        self._queue.append(waiting)
        if best is None:
            self._grow()
        elif self._look is None:
            self._look = asyncio.get_running_loop().call_later(PATIENCE_S, self._still_queueing)

    def _still_queueing(self) -> None:
        self._look = None
        if self._queue:
            self._grow()

    async def call(self, call: Call, timeout_s: float) -> Reply:
        """Run a call in any process. Dying of someone else's call costs nothing: it is simply run again."""
        while not self._closed:
            waiting = Waiting(call, timeout_s, asyncio.get_running_loop().create_future())
            self._submit(waiting)
            try:
                reply = await waiting.future
            except HostGone as gone:
                if gone.guilty:
                    raise RolloutFailed(gone.kind, call.where, gone.why) from None
                continue
            return self._noted(call, reply)
        raise _closed()

    def _noted(self, call: Call, reply: Reply) -> Reply:
        self._mean_s += 0.05 * (reply.seconds - self._mean_s)
        return checked(call, reply)

    async def take_seat(self) -> HostProcess:
        """The process with the fewest rollouts seated, for a rollout with state."""
        self._grow()
        while not (alive := [p for p in self._processes if p.alive]):
            if self._closed:
                raise _closed()
            self._grow()
            if not self._starting:
                await asyncio.sleep(LOOK_S)  # those that are dying still have their places
                continue
            done, _ = await asyncio.wait(self._starting, timeout=1.0)
            failed = next((t.exception() for t in done if not t.cancelled() and t.exception()), None)
            if failed:
                raise RolloutFailed("environment_error", "environment", str(failed))
        best = min(alive, key=lambda p: p.seats)
        best.seats += 1
        return best

    async def seated_call(self, process: HostProcess, call: Call, timeout_s: float) -> Reply:
        """Run a call in the process that holds the rollout's state."""
        if not process.alive:
            raise SeatLost
        waiting = Waiting(call, timeout_s, asyncio.get_running_loop().create_future())
        process.send(waiting)
        try:
            return self._noted(call, await waiting.future)
        except HostGone as gone:
            if gone.guilty:
                raise RolloutFailed(gone.kind, call.where, gone.why) from None
            raise SeatLost from None

    async def close(self) -> None:
        """End every process; whoever still waits for one is told."""
        self._closed = True
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.future.done():
                waiting.future.set_exception(_closed())
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(process.stop() for process in list(self._processes)))


def _closed() -> RolloutFailed:
    return RolloutFailed("environment_error", "environment", "it is closed")


def checked(call: Call, reply: Reply) -> Reply:
    """A reply, or the failure it reports."""
    if reply.failure:
        raise RolloutFailed(reply.failure, call.where, reply.message)
    return reply
