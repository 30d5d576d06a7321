"""One environment process, seen from its worker: calls go down in order, and the head of the line has a deadline."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.core.manifest import EnvironmentSpec, Limits
from rollbook.environments.frames import Call, Frames, Reply, Start, frame
from rollbook.errors import UsageError
from rollbook.processes.child import Child, module_argv

START_S = 120.0
HANG_UP_S = 1.0
_decode = msgspec.json.Decoder(Reply).decode


class HostGone(Exception):
    """The process ended while a call was waiting. `guilty`: it was the call being executed; `why` says how it ended."""

    def __init__(self, guilty: bool, why: str, kind: str) -> None:
        self.guilty, self.why, self.kind = guilty, why, kind
        super().__init__(why)


class Waiting(msgspec.Struct, weakref=True):
    """A call in the line."""

    call: Call
    timeout_s: float
    future: asyncio.Future[Reply]


class HostProcess(asyncio.Protocol):
    """Starts the process, keeps its line of calls, and kills it when the head of the line is late."""

    def __init__(self, on_free: Callable[[HostProcess], None], on_gone: Callable[[HostProcess], None]) -> None:
        self._on_free, self._on_gone = on_free, on_gone
        self._line: deque[Waiting] = deque()
        self._outbox: list[bytes] = []
        self._unanswered = 0
        self._frames = Frames()
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._verdict: tuple[str, str] | None = None
        self._ready: asyncio.Future[Reply] | None = None
        self._child: Child | None = None
        self._ended = False
        self.alive = True
        self.seats = 0

    @property
    def waiting(self) -> int:
        """How many calls are in the line."""
        return len(self._line)

    async def start(self, spec: EnvironmentSpec, run: Path | None, limits: Limits, log: Path | None) -> None:
        """Spawn it and wait until the environment is loaded; what the environment does wrong is a UsageError."""
        ours, theirs = socket.socketpair()
        argv = module_argv("rollbook.environments.host", str(theirs.fileno()))
        self._child = Child(argv, pass_fds=(theirs.fileno(),), log=log)
        theirs.close()
        self._child.notify(self._loop, self._exited)
        ours.setblocking(False)
        self._socket = ours.dup()
        self._ready = self._loop.create_future()
        await self._loop.create_connection(lambda: self, sock=ours)
        assert self._transport
        self._transport.write(frame(Start(spec, str(run) if run else None, limits.memory_mb, limits.tool_chars)))
        try:
            async with asyncio.timeout(START_S):
                reply = await self._ready
        except TimeoutError:
            raise UsageError(f"environment {spec.spec} did not load within {START_S:.0f} s") from None
        if reply.failure:
            raise UsageError(f"environment {spec.spec} did not load: {reply.message}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ready."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        """It hung up. Most often it is dying and its end will say of what; if it goes on, nobody can hear it."""
        if self.alive:
            self.alive = False
            self._disarm()
            self._timer = self._loop.call_later(HANG_UP_S, self._hung_up)

    def _hung_up(self) -> None:
        self._drain()
        kind, where = self._head()
        self.kill(kind, f"the environment process closed its channel during {where}")

    def send(self, waiting: Waiting) -> None:
        """Put a call at the end of the line."""
        if not self._outbox and not self._unanswered:
            self._loop.call_soon(self._flush)
        self._outbox.append(frame(waiting.call))
        self._line.append(waiting)
        if len(self._line) == 1:
            self._arm()

    def _flush(self) -> None:
        """One write for all calls that came while it was busy; who was lost meanwhile hears of it from its end."""
        assert self._transport
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._unanswered += len(self._outbox)
        self._outbox.clear()

    def data_received(self, data: bytes) -> None:
        """Replies come in the order of the calls. What one says that is being killed does not count."""
        if self._verdict:
            return
        for body in self._frames.feed(data):
            try:
                reply = _decode(body)
            except msgspec.DecodeError as error:
                self.kill("environment_error", f"the environment process wrote nonsense: {error}")
                return
            if self._ready and not self._ready.done():
                self._ready.set_result(reply)
            elif self._line:
                self._answered(reply)

    def _answered(self, reply: Reply) -> None:
        waiting = self._line.popleft()
        self._unanswered -= 1
        if not waiting.future.done():
            waiting.future.set_result(reply)
        self._arm()
        self._on_free(self)
        if self._outbox and not self._unanswered:
            self._flush()

    def _disarm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """A new head: its time begins. A timer that fires no later looks again then, so that none is set per call."""
        self._since = self._loop.time()
        if not self._line:
            return
        due = self._since + self._line[0].timeout_s
        if self._timer is not None and self._timer.when() > due:  # set for a call that was allowed more time
            self._disarm()
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._line:
            return
        head = self._line[0]
        left = self._since + head.timeout_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        kind = "verifier_timeout" if head.call.method == "verify" else "environment_error"
        self.kill(kind, f"{head.call.where} took longer than {head.timeout_s:g} s")

    def kill(self, kind: str, why: str) -> None:
        """End the process and all it started; the head of the line fails for this reason."""
        self._verdict = self._verdict or (kind, why)
        if self._child:
            self._child.kill_now()

    def _exited(self) -> None:
        """The process is gone: its head is guilty, the others merely unlucky."""
        if self._ended:
            return
        self._ended, self.alive = True, False
        if self._transport:
            self._transport.abort()
        self._drain()
        self._disarm()
        assert self._child
        kind, why = self._verdict or self._guess(self._child.returncode or 0)
        if self._ready and not self._ready.done():
            self._ready.set_result(Reply("environment_error", f"{why}. {self._child.log_tail(5).strip()}"))
        for place, waiting in enumerate(self._line):
            if not waiting.future.done():
                waiting.future.set_exception(HostGone(place == 0, why, kind))
        self._line.clear()
        if self._socket:
            self._socket.close()
        self._on_gone(self)

    def _drain(self) -> None:
        """Hear out what it said before it died: a transport whose write fails stops reading at once."""
        while self._socket and not self._verdict:
            try:
                data = self._socket.recv(1 << 18)
            except OSError:
                break
            if not data:
                break
            self.data_received(data)

    def _head(self) -> tuple[str, str]:
        """What is being executed, and the failure it is if it ends the process."""
        where = self._line[0].call.where if self._line else "idle"
        return "verifier_error" if where == "verify" else "environment_error", where

    def _guess(self, code: int) -> tuple[str, str]:
        kind, where = self._head()
        if code >= 0:
            return kind, f"the environment process exited with status {code} during {where}"
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            return "environment_error", f"the environment process was killed ({name}: out of memory?) during {where}"
        return kind, f"the environment process died of {name} during {where}"

    async def stop(self) -> None:
        """End it in order: nobody waits for it any more."""
        self._verdict = self._verdict or ("environment_error", "the worker is closing")
        if self._transport:
            self._transport.abort()
        if self._child:
            await self._child.kill_tree()
