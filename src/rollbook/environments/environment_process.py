"""The main program of an environment process: run sync methods, one call at a time, until the worker is gone.

    python -m rollbook.environments.environment_process FD

Whatever the environment does here (raise, exit, crash, fork, use too much memory) stays here: its worker gets a reply
or notices the exit. The memory limit of environment processes is set here.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from rollbook.core import JSON, Message, RoleCall, Task, as_score
from rollbook.environments.calls import (
    EnvironmentCall,
    EnvironmentReply,
    ModelAnswer,
    ModelAsk,
    StartMessage,
    WorkerChannel,
    describe_exception,
    encode_frame,
    failure_kind,
)
from rollbook.environments.environment import (
    Environment,
    EnvironmentState,
    as_message,
    choose_container,
    takes_container,
)
from rollbook.environments.roles.role_model import set_process_asker
from rollbook.environments.snapshot import load_environment
from rollbook.environments.sync_containers import SyncContainerHandle
from rollbook.environments.tools import Toolbox
from rollbook.errors import RollbookError, RolloutFailed
from rollbook.processes import become_subreaper, die_with_parent, trim_log


class WorkerRoleAsker:
    """Asks the models of roles for the call that runs in this process."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel

    def ask_blocking(self, role: str, messages: Sequence[Message], sampling: Mapping[str, JSON]) -> RoleCall:
        """Ask the model of a role, and wait for its answer. Threads of the environment ask one after another."""
        if self._channel.is_forked:
            raise RolloutFailed("environment_error", f"role {role}", "a forked process cannot ask the model of a role")
        answer = self._channel.exchange(ModelAsk(role, list(messages), dict(sampling)), ModelAnswer)
        if answer.call is None:
            raise RolloutFailed(answer.failure, f"role {role}", answer.message)
        return answer.call


class CallHandler:
    """The environment, the states of the rollouts in this process, and the id of the process they must not leave."""

    def __init__(self, environment: Environment, tool_chars: int, channel: WorkerChannel) -> None:
        self._environment, self._channel = environment, channel
        self._toolbox = Toolbox(environment, tool_chars)
        self._sessions: dict[str, tuple[Task, EnvironmentState]] = {}
        self._pid = os.getpid()

    def handle_call(self, call: EnvironmentCall) -> EnvironmentReply:
        """Run one call. Only this process replies: a child that the environment forked exits here."""
        start = time.perf_counter()
        try:
            failure, message, value = "", "", getattr(self, f"_{call.method}")(call)
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a verifier are its errors
            failure = failure_kind(error, "verifier_error" if call.method == "verify" else "environment_error")
            message, value = describe_exception(error), None
        if os.getpid() != self._pid:
            os._exit(0)
        return EnvironmentReply(failure, message, value, time.perf_counter() - start)

    def _verify(self, call: EnvironmentCall) -> object:
        assert call.task is not None
        assert call.record is not None
        task = Task.from_line(call.task)
        verify = self._environment.verify
        return as_score(verify(task, call.record.to_rollout(task), **self._inject(verify, call)))

    def _inject(self, method: Callable[..., object], call: EnvironmentCall) -> dict[str, SyncContainerHandle]:
        """Return the container of a call's rollout as an argument, if the method takes it."""
        return {"container": self._container(call)} if takes_container(method) else {}

    def _container(self, call: EnvironmentCall) -> SyncContainerHandle:
        return SyncContainerHandle(self._channel, call.session)

    def _container_for(self, call: EnvironmentCall) -> object:
        assert call.task is not None
        return msgspec.to_builtins(choose_container(self._environment, Task.from_line(call.task)))

    def _open(self, call: EnvironmentCall) -> None:
        assert call.task is not None
        task = Task.from_line(call.task)
        opening = self._environment.open(task, **self._inject(self._environment.open, call))
        self._sessions[call.session] = task, opening

    def _tool(self, call: EnvironmentCall) -> str:
        _, state = self._sessions[call.session]
        return self._toolbox.use(call.tool, call.arguments, state, self._container(call))

    def _solve(self, call: EnvironmentCall) -> None:
        task, state = self._sessions[call.session]
        solve: Callable[..., object] = self._environment.solve
        solve(task, state, **self._inject(solve, call))

    def _reply(self, call: EnvironmentCall) -> object:
        assert call.record is not None
        task, state = self._sessions[call.session]
        return as_message(self._environment.reply(task, call.record.to_rollout(task), state))

    def _outcome(self, call: EnvironmentCall) -> object:
        return self._environment.outcome(self._sessions[call.session][1])

    def _close(self, call: EnvironmentCall) -> None:
        if call.session in self._sessions:
            _, state = self._sessions.pop(call.session)
            self._environment.close(state)


def encode_reply(reply: EnvironmentReply, method: str) -> bytes:
    """Encode a reply as a frame; a value that JSON cannot represent is a failure of the environment."""
    try:
        return encode_frame(reply)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = "invalid_reward" if method == "verify" else "environment_error"
        return encode_frame(
            EnvironmentReply(kind, f"the result cannot be stored as JSON: {error}", None, reply.seconds)
        )


def limit_memory(memory_mb: int) -> None:
    """Limit the address space to what is used now plus this much; a call that needs more gets a MemoryError."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return  # not Linux: RLIMIT_AS is not enforced there either
    resource.setrlimit(resource.RLIMIT_AS, (used + (memory_mb << 20), resource.RLIM_INFINITY))


def serve_calls(channel: WorkerChannel) -> None:
    """Load the environment of the first frame, then run calls until the worker closes the channel."""
    first = channel.receive()
    if first is None:
        return
    handler = _load_handler(channel, msgspec.json.decode(first, type=StartMessage))
    set_process_asker(WorkerRoleAsker(channel))
    for call in channel.calls():
        channel.send(encode_reply(handler.handle_call(call), call.method))
        trim_log()


def _load_handler(channel: WorkerChannel, start: StartMessage) -> CallHandler:
    try:
        environment = load_environment(start.spec, Path(start.run) if start.run else None)
        handler = CallHandler(environment, start.tool_chars, channel)
    except RollbookError as error:
        channel.send(encode_frame(EnvironmentReply("environment_error", str(error))))
        sys.exit(2)
    limit_memory(start.memory_mb)
    channel.send(encode_frame(EnvironmentReply("", "")))
    return handler


WORKERS_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def leave_signals_to_worker() -> None:
    """Let the worker decide when this process ends: a batch system that cancels a job signals every process of it.

    The handler does nothing. SIG_IGN would be inherited by programs that the environment starts and wants to terminate.
    """
    for number in WORKERS_SIGNALS:
        signal.signal(number, lambda *_: None)
    # Blocked during a fork: a signal to a child that has not restored its handlers yet would be lost.
    block = partial(signal.pthread_sigmask, signal.SIG_BLOCK, WORKERS_SIGNALS)
    os.register_at_fork(before=block, after_in_parent=_unblock_signals, after_in_child=_restore_signals)


def _restore_signals() -> None:
    for number in WORKERS_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _unblock_signals()


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKERS_SIGNALS)


if __name__ == "__main__":
    leave_signals_to_worker()
    die_with_parent()
    become_subreaper()
    serve_calls(WorkerChannel(socket.socket(fileno=int(sys.argv[1]))))
