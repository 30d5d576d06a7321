"""The main program of an environment process: run sync methods, one call at a time, until the worker is gone.

    python -m rollbook.environments.environment_process FD

Whatever the environment does here (raise, exit, crash, fork, use too much memory) stays here: its worker gets a reply
or notices the exit. The memory limit of environment processes is set here.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import msgspec

from rollbook.core import Task, as_score
from rollbook.environments.calls import (
    EnvironmentCall,
    EnvironmentReply,
    FrameReader,
    StartMessage,
    describe_exception,
    encode_frame,
    failure_kind,
)
from rollbook.environments.environment import Environment, EnvironmentState, as_message
from rollbook.environments.snapshot import load_environment
from rollbook.environments.tools import Toolbox
from rollbook.errors import RollbookError
from rollbook.processes import become_subreaper, die_with_parent, trim_log


class CallHandler:
    """The environment, the states of the rollouts in this process, and the id of the process they must not leave."""

    def __init__(self, environment: Environment, tool_chars: int) -> None:
        self._environment = environment
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
        return as_score(self._environment.verify(task, call.record.to_rollout(task)))

    def _open(self, call: EnvironmentCall) -> None:
        assert call.task is not None
        task = Task.from_line(call.task)
        self._sessions[call.session] = task, self._environment.open(task)

    def _tool(self, call: EnvironmentCall) -> str:
        _, state = self._sessions[call.session]
        return self._toolbox.use(call.tool, call.arguments, state)

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
        return encode_frame(EnvironmentReply(kind, f"the result does not fit JSON: {error}", None, reply.seconds))


def limit_memory(memory_mb: int) -> None:
    """Limit the address space to what is used now plus this much; a call that needs more gets a MemoryError."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return  # not Linux: RLIMIT_AS is not enforced there either
    resource.setrlimit(resource.RLIMIT_AS, (used + (memory_mb << 20), resource.RLIM_INFINITY))


def serve_calls(channel: socket.socket) -> None:
    """Load the environment of the first frame, then run calls until the worker closes the channel."""
    frames, handler = FrameReader(), None
    decode_call = msgspec.json.Decoder(EnvironmentCall).decode
    while data := channel.recv(1 << 18):
        for body in frames.feed(data):
            if handler is None:
                handler = _load_handler(channel, msgspec.json.decode(body, type=StartMessage))
            else:
                call = decode_call(body)
                channel.sendall(encode_reply(handler.handle_call(call), call.method))
                trim_log()


def _load_handler(channel: socket.socket, start: StartMessage) -> CallHandler:
    try:
        handler = CallHandler(load_environment(start.spec, Path(start.run) if start.run else None), start.tool_chars)
    except RollbookError as error:
        channel.sendall(encode_frame(EnvironmentReply("environment_error", str(error))))
        sys.exit(2)
    limit_memory(start.memory_mb)
    channel.sendall(encode_frame(EnvironmentReply("", "")))
    return handler


if __name__ == "__main__":
    die_with_parent()
    become_subreaper()
    serve_calls(socket.socket(fileno=int(sys.argv[1])))
