"""The pool of environment processes of a worker: it grows with the work, up to a limit.

A process that dies is replaced. The calls of a process are sent in order; the one that it executes has a deadline.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rollbook.core import JSON_ERRORS, EnvironmentSpec, Limits
from rollbook.environments.calls import (
    ContainerRequest,
    EnvironmentCall,
    EnvironmentReply,
    FrameReader,
    ModelAnswer,
    ModelAsk,
    StartMessage,
    encode_frame,
)
from rollbook.environments.sync_containers import answer_request
from rollbook.errors import RolloutFailed, Stopped, UsageError
from rollbook.processes import Child, module_argv

if TYPE_CHECKING:
    from rollbook.containers import ContainerHandle
    from rollbook.environments.roles.caller import RoleCaller

QUICK_CALL_S = 0.005
MAX_PIPELINED = 8
MAX_FAILED_STARTS = 3
MAX_CONTAINER_PROCESSES = 64
POLL_S = 0.05
CLOSED = "it is closed"
QUEUE_PATIENCE_S = 0.05
"""How long calls wait in the queue before another process is started: a burst of quick calls is over by then."""


class SessionLost(Exception):
    """The process with a rollout's state died during another rollout's call: start again, no attempt is lost."""


class EnvironmentProcessPool:
    """Calls without state go to any free process; all calls of a rollout with state go to one."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        limits: Limits,
        *,
        run: Path | None = None,
        max_processes: int = 2,
        log: Path | None = None,
    ) -> None:
        self._spec, self._limits, self._run, self._max_processes, self._log = spec, limits, run, max_processes, log
        self._exclusive = bool(spec.container) and spec.state == "sync"
        if self._exclusive:
            self._max_processes = MAX_CONTAINER_PROCESSES
        self._processes: list[EnvironmentProcess] = []
        self._queue: deque[PendingCall] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._failed_starts = 0
        self._closed = False
        self._mean_s = 0.0
        self._queue_timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Start the first process, so that an environment that does not load fails before any rollout."""
        await self._start()

    async def _start(self) -> None:
        process = EnvironmentProcess(self._send_queued, self._on_process_gone)
        try:
            await process.start(self._spec, self._run, self._limits, self._log)
        except BaseException:
            await process.stop()
            raise
        self._failed_starts = 0
        self._processes.append(process)
        self._send_queued(process)

    def _start_another(self) -> None:
        """Start one more process, if the limit allows; errors are raised in the waiting calls."""
        if self._closed or self._starting or len(self._processes) >= self._max_processes:
            return
        task = asyncio.create_task(self._start(), name="environment process")
        self._starting.add(task)
        task.add_done_callback(self._on_start_done)

    def _on_start_done(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS and not self._processes:
            self._fail_queued(str(error))
            self._failed_starts = 0
        elif not self._processes:
            self._start_another()

    def _fail_queued(self, reason: str) -> None:
        while self._queue:
            pending = self._queue.popleft()
            if not pending.future.done():
                pending.future.set_exception(RolloutFailed("environment_error", "environment", reason))

    def _on_process_gone(self, process: EnvironmentProcess) -> None:
        if process not in self._processes:
            return  # it never started, and `_start` has raised
        self._processes.remove(process)
        if self._queue or not self._processes:
            self._start_another()

    @property
    def _max_pending(self) -> int:
        """Quick calls are sent ahead, so that the process never idles; no call should wait behind a slow one."""
        return MAX_PIPELINED if self._mean_s < QUICK_CALL_S and not self._exclusive else 1

    def _send_queued(self, process: EnvironmentProcess) -> None:
        while self._queue and process.alive and process.pending < self._max_pending:
            pending = self._queue.popleft()
            if not pending.future.done():
                process.send(pending)

    def _submit(self, pending: PendingCall) -> None:
        best = min((p for p in self._processes if p.alive), key=lambda p: p.pending, default=None)
        if best is not None and best.pending < self._max_pending:
            best.send(pending)
            return
        self._queue.append(pending)
        if best is None:
            self._start_another()
        elif self._queue_timer is None:
            self._queue_timer = asyncio.get_running_loop().call_later(QUEUE_PATIENCE_S, self._check_queue)

    def _check_queue(self) -> None:
        self._queue_timer = None
        if self._queue:
            self._start_another()

    async def call(self, call: EnvironmentCall, timeout_s: float, roles: RoleCaller | None = None) -> EnvironmentReply:
        """Run a call in any process; `roles` answers what it asks the models of roles.

        If the process dies of another call, this one is simply run again.
        """
        while not self._closed:
            with suppress(SessionLost):
                return await self._send(call, timeout_s, self._submit, roles)
        raise RolloutFailed("environment_error", "environment", CLOSED)

    async def _send(
        self,
        call: EnvironmentCall,
        timeout_s: float,
        send: Callable[[PendingCall], None],
        roles: RoleCaller | None = None,
        container: ContainerHandle | None = None,
    ) -> EnvironmentReply:
        """Send a call, and return its reply or raise its failure; SessionLost if the process died of another call."""
        pending = PendingCall(call, timeout_s, asyncio.get_running_loop().create_future(), roles, container)
        send(pending)
        try:
            reply = await pending.future
        except EnvironmentProcessDied as gone:
            if gone.caused_by_call:
                raise RolloutFailed(gone.kind, call.where, gone.why) from None
            raise SessionLost from None
        self._mean_s += 0.05 * (reply.seconds - self._mean_s)
        if roles is not None:  # what its model failed with is the cause of what the environment raised
            roles.check_failure(call.where)
        if reply.failure:
            raise RolloutFailed(reply.failure, call.where, reply.message)
        return reply

    async def acquire_process(self) -> EnvironmentProcess:
        """Return the process with the fewest sessions, for a rollout with state.

        A rollout with a container has a process for itself: commands inside take long, and others would wait.
        """
        if not self._exclusive or not any(p.alive and not p.sessions for p in self._processes):
            self._start_another()
        while not (alive := [p for p in self._processes if p.alive and not (self._exclusive and p.sessions)]):
            if self._closed:
                raise RolloutFailed("environment_error", "environment", CLOSED)
            self._start_another()
            if not self._starting:
                await asyncio.sleep(POLL_S)  # dying processes still count towards the limit
                continue
            done, _ = await asyncio.wait(self._starting, timeout=1.0)
            failed = next((t.exception() for t in done if not t.cancelled() and t.exception()), None)
            if failed:
                raise RolloutFailed("environment_error", "environment", str(failed))
        best = min(alive, key=lambda p: p.sessions)
        best.sessions += 1
        return best

    async def session_call(
        self,
        process: EnvironmentProcess,
        call: EnvironmentCall,
        timeout_s: float,
        roles: RoleCaller | None = None,
        container: ContainerHandle | None = None,
    ) -> EnvironmentReply:
        """Run a call in the process that has the rollout's state; it may use the rollout's container."""
        if not process.alive:
            raise SessionLost
        return await self._send(call, timeout_s, process.send, roles, container)

    async def close(self) -> None:
        """End every process; calls that still wait fail."""
        self._closed = True
        self._fail_queued(CLOSED)
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(process.stop() for process in list(self._processes)))


START_S = 120.0
HANG_UP_GRACE_S = 1.0
_decode_frame = msgspec.json.Decoder(EnvironmentReply | ModelAsk | ContainerRequest).decode


class EnvironmentProcessDied(Exception):
    """The process ended before it replied to a call; `caused_by_call`: while executing it; `why`: how it ended."""

    def __init__(self, caused_by_call: bool, why: str, kind: str) -> None:
        self.caused_by_call, self.why, self.kind = caused_by_call, why, kind
        super().__init__(why)


class PendingCall(msgspec.Struct, weakref=True):
    """A call in a queue, the future of its reply, and who asks the models of roles for it."""

    call: EnvironmentCall
    timeout_s: float
    future: asyncio.Future[EnvironmentReply]
    roles: RoleCaller | None = None
    container: Any = None
    """The ContainerHandle of its rollout, if it has one."""


class EnvironmentProcess(asyncio.Protocol):
    """One process and its queue of calls; it is killed when the first call of the queue is late."""

    def __init__(
        self, on_free: Callable[[EnvironmentProcess], None], on_gone: Callable[[EnvironmentProcess], None]
    ) -> None:
        self._on_free, self._on_gone = on_free, on_gone
        self._pending: deque[PendingCall] = deque()
        self._outbox: list[bytes] = []
        self._unanswered = 0
        self._frames = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._head_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._end_reason: tuple[str, str] | None = None
        self._ready: asyncio.Future[EnvironmentReply] | None = None
        self._child: Child | None = None
        self._ended = False
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._answering: asyncio.Task[None] | None = None
        self.alive = True
        self.sessions = 0

    @property
    def pending(self) -> int:
        """How many calls are in the queue."""
        return len(self._pending)

    async def start(self, spec: EnvironmentSpec, run: Path | None, limits: Limits, log: Path | None) -> None:
        """Spawn it and wait until the environment is loaded. One that does not load is a UsageError; one that something
        else kills is Stopped."""
        ours, theirs = socket.socketpair()
        argv = module_argv("rollbook.environments.environment_process", str(theirs.fileno()))
        self._child = Child(argv, pass_fds=(theirs.fileno(),), log=log)
        theirs.close()
        self._child.call_on_exit(self._loop, self._on_exit)
        ours.setblocking(False)
        self._socket = ours.dup()
        self._ready = self._loop.create_future()
        await self._loop.create_connection(lambda: self, sock=ours)
        assert self._transport
        self._transport.write(
            encode_frame(StartMessage(spec, str(run) if run else None, limits.memory_mb, limits.tool_chars))
        )
        try:
            async with asyncio.timeout(START_S):
                reply = await self._ready
        except TimeoutError:
            raise UsageError(f"environment {spec.spec} did not load within {START_S:.0f} s") from None
        if self._child.returncode == -signal.SIGKILL and self._end_reason is None:  # not by us
            raise Stopped(
                f"environment {spec.spec} was killed while it loaded (out of memory?): free memory, then resume"
            )
        if reply.failure:
            raise UsageError(f"environment {spec.spec} did not load: {reply.message}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        """Handle a closed channel. Usually the process is dying and its exit has the reason; otherwise it is killed."""
        if self.alive:
            self.alive = False
            self._cancel_deadline()
            self._timer = self._loop.call_later(HANG_UP_GRACE_S, self._kill_after_hang_up)

    def _kill_after_hang_up(self) -> None:
        self._drain()
        kind, where = self._running_call()
        self.kill(kind, f"the environment process closed its channel during {where}")

    def send(self, pending_call: PendingCall) -> None:
        """Append a call to the queue."""
        if not self._outbox and not self._unanswered:
            self._loop.call_soon(self._flush)
        self._outbox.append(encode_frame(pending_call.call))
        self._pending.append(pending_call)
        if len(self._pending) == 1:
            self._arm_deadline()

    def _flush(self) -> None:
        """Send all calls that came while it was busy in one write; if the channel is closed, its exit fails them."""
        assert self._transport
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._unanswered += len(self._outbox)
        self._outbox.clear()

    def data_received(self, data: bytes) -> None:
        """Resolve calls in order, as replies come. Replies of a process that is being killed are ignored."""
        if self._end_reason:
            return
        for body in self._frames.feed(data):
            try:
                frame = _decode_frame(body)
            except JSON_ERRORS as error:
                self.kill("environment_error", f"the environment process sent invalid data: {error}")
                return
            if isinstance(frame, ModelAsk):
                self._ask_model(frame)
            elif isinstance(frame, ContainerRequest):
                self._answering = self._loop.create_task(self._answer(frame), name="container request")
            elif self._ready and not self._ready.done():
                self._ready.set_result(frame)
            elif self._pending:
                self._resolve_head(frame)

    def _ask_model(self, ask: ModelAsk) -> None:
        """Ask the model of a role for the call that is running. Its deadline does not count the time until then."""
        if self._asking is not None or self._ended:
            self.kill("environment_error", "the environment process asked two questions at once")
            return
        self._asked_at = self._loop.time()
        self._cancel_deadline()
        self._asking = self._loop.create_task(self._answer_model(ask), name="ask the model of a role")

    async def _answer_model(self, ask: ModelAsk) -> None:
        answer = await _ask_for_call(self._pending[0] if self._pending else None, ask)
        self._asking = None
        if self._ended or not self._transport or self._transport.is_closing():
            return
        self._transport.write(encode_frame(answer))
        self._head_since += self._loop.time() - self._asked_at
        if self._pending:
            self._timer = self._loop.call_at(self._head_since + self._pending[0].timeout_s, self._check_deadline)

    async def _answer(self, request: ContainerRequest) -> None:
        """Do what the running call asks of its container; a call can use no other rollout's."""
        head = self._pending[0] if self._pending else None
        own = head.container if head and head.call.session == request.session else None
        answer = encode_frame(await answer_request(own, request))
        if self._transport and not self._transport.is_closing():
            self._transport.write(answer)

    def _resolve_head(self, reply: EnvironmentReply) -> None:
        pending = self._pending.popleft()
        self._unanswered -= 1
        if not pending.future.done():
            pending.future.set_result(reply)
        self._arm_deadline()
        self._on_free(self)
        if self._outbox and not self._unanswered:
            self._flush()

    def _cancel_deadline(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _arm_deadline(self) -> None:
        """Start the time of a new first call. A timer that fires earlier is reused, so that not every call sets one."""
        self._head_since = self._loop.time()
        if not self._pending:
            return
        due = self._head_since + self._pending[0].timeout_s
        if self._timer is not None and self._timer.when() > due:  # set for a call with a longer timeout
            self._cancel_deadline()
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._pending:
            return
        head = self._pending[0]
        left = self._head_since + head.timeout_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_deadline)
            return
        kind = "verifier_timeout" if head.call.method == "verify" else "environment_error"
        self.kill(kind, f"{head.call.where} took longer than {head.timeout_s:g} s")

    def kill(self, kind: str, why: str) -> None:
        """Kill the process and all that it started; the first call of the queue fails for this reason."""
        self._end_reason = self._end_reason or (kind, why)
        if self._child:
            self._child.kill_now()

    def _on_exit(self) -> None:
        """Handle the exit of the process: the first call of the queue caused it, the others did not."""
        if self._ended:
            return
        self._ended, self.alive = True, False
        if self._answering:
            self._answering.cancel()
        if self._transport:
            self._transport.abort()
        self._drain()
        self._cancel_deadline()
        if self._asking:
            self._asking.cancel()
        assert self._child
        kind, why = self._end_reason or self._describe_exit(self._child.returncode or 0)
        if self._ready and not self._ready.done():
            self._ready.set_result(EnvironmentReply("environment_error", f"{why}. {self._child.log_tail(5).strip()}"))
        for position, pending in enumerate(self._pending):
            if not pending.future.done():
                pending.future.set_exception(EnvironmentProcessDied(position == 0, why, kind))
        self._pending.clear()
        if self._socket:
            self._socket.close()
        self._on_gone(self)

    def _drain(self) -> None:
        """Read the replies that it sent before it died: a transport whose write fails stops reading at once."""
        while self._socket and not self._end_reason:
            try:
                data = self._socket.recv(1 << 18)
            except OSError:
                break
            if not data:
                break
            self.data_received(data)

    def _running_call(self) -> tuple[str, str]:
        """Return the failure kind if the running call ends the process, and the name of the call."""
        where = self._pending[0].call.where if self._pending else "idle"
        return "verifier_error" if where == "verify" else "environment_error", where

    def _describe_exit(self, code: int) -> tuple[str, str]:
        kind, where = self._running_call()
        if code >= 0:
            return kind, f"the environment process exited with status {code} during {where}"
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            return "environment_error", f"the environment process was killed ({name}: out of memory?) during {where}"
        return kind, f"the environment process died of {name} during {where}"

    async def stop(self) -> None:
        """End it: no call waits for it any more."""
        self._end_reason = self._end_reason or ("environment_error", "the worker is closing")
        if self._transport:
            self._transport.abort()
        if self._child:
            await self._child.kill_tree()
        if self._asking:
            self._asking.cancel()


async def _ask_for_call(pending: PendingCall | None, ask: ModelAsk) -> ModelAnswer:
    """Return the answer for a call; once nobody waits for the call, there is none."""
    if pending is None or pending.roles is None:
        why = f"the role {ask.role} was asked outside of a rollout: ask in open, tools, reply or verify"
        return ModelAnswer("environment_error", why)
    asking = asyncio.ensure_future(pending.roles.answer(ask))
    ended: set[asyncio.Future[Any]] = {asking, pending.future}
    try:
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else ModelAnswer("environment_error", "the rollout has ended")
    finally:
        asking.cancel()
