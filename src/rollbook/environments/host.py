"""An environment process: runs one environment's sync methods, one call at a time, until its worker is gone.

    python -m rollbook.environments.host FD

Whatever the environment does here (raise, exit, crash, fork, eat memory) stays here: its worker sees a Reply
or an exit.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import msgspec

from rollbook.core.score import as_score
from rollbook.core.task import Task
from rollbook.environments.broken import describe, kind_of
from rollbook.environments.environment import Environment, State, as_answer
from rollbook.environments.frames import Call, Frames, Reply, Start, frame
from rollbook.environments.snapshot import load
from rollbook.environments.toolbox import Toolbox
from rollbook.errors import RollbookError
from rollbook.processes.life import die_with_parent, keep_orphans, trim_log


class Host:
    """The environment, the states of the rollouts seated here, and the process they must not leave."""

    def __init__(self, environment: Environment, tool_chars: int) -> None:
        self._environment = environment
        self._toolbox = Toolbox(environment, tool_chars)
        self._seats: dict[str, tuple[Task, State]] = {}
        self._pid = os.getpid()

    def answer(self, call: Call) -> Reply:
        """Do one call. Only this process answers: a child that the environment forked ends here."""
        start = time.perf_counter()
        try:
            failure, message, value = "", "", self._do(call)
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a verifier are its errors
            failure, message, value = kind_of(error, _broken(call.method)), describe(error), None
        if os.getpid() != self._pid:
            os._exit(0)
        return Reply(failure, message, value, time.perf_counter() - start)

    def _do(self, call: Call) -> object:
        method = getattr(self, f"_{call.method}")
        return method(call)

    def _verify(self, call: Call) -> object:
        assert call.task is not None
        assert call.record is not None
        task = Task.from_line(call.task)
        return as_score(self._environment.verify(task, call.record.rollout(task)))

    def _open(self, call: Call) -> None:
        assert call.task is not None
        task = Task.from_line(call.task)
        self._seats[call.seat] = task, self._environment.open(task)

    def _tool(self, call: Call) -> str:
        _, state = self._seats[call.seat]
        return self._toolbox.use(call.tool, call.arguments, state)

    def _reply(self, call: Call) -> object:
        assert call.record is not None
        task, state = self._seats[call.seat]
        return as_answer(self._environment.reply(task, call.record.rollout(task), state))

    def _outcome(self, call: Call) -> object:
        return self._environment.outcome(self._seats[call.seat][1])

    def _close(self, call: Call) -> None:
        if call.seat in self._seats:
            _, state = self._seats.pop(call.seat)
            self._environment.close(state)


def _broken(method: str) -> str:
    return "verifier_error" if method == "verify" else "environment_error"


def encode_reply(reply: Reply, method: str) -> bytes:
    """A reply as a frame; a value that JSON cannot hold is the environment's mistake."""
    try:
        return frame(reply)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = "invalid_reward" if method == "verify" else "environment_error"
        return frame(Reply(kind, f"the result does not fit JSON: {error}", None, reply.seconds))


def limit_memory(memory_mb: int) -> None:
    """Allow so much address space beyond what is used now; a call that needs more gets a MemoryError."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return  # not Linux: RLIMIT_AS is not kept there either
    resource.setrlimit(resource.RLIMIT_AS, (used + (memory_mb << 20), resource.RLIM_INFINITY))


def serve(channel: socket.socket) -> None:
    """Load what the first frame says, then answer calls until the worker hangs up."""
    frames, host = Frames(), None
    decode_call = msgspec.json.Decoder(Call).decode
    while data := channel.recv(1 << 18):
        for body in frames.feed(data):
            if host is None:
                host = _start(channel, msgspec.json.decode(body, type=Start))
            else:
                call = decode_call(body)
                channel.sendall(encode_reply(host.answer(call), call.method))
                trim_log()


def _start(channel: socket.socket, start: Start) -> Host:
    try:
        host = Host(load(start.spec, Path(start.run) if start.run else None), start.tool_chars)
    except RollbookError as error:
        channel.sendall(frame(Reply("environment_error", str(error))))
        sys.exit(2)
    limit_memory(start.memory_mb)
    channel.sendall(frame(Reply("", "")))
    return host


if __name__ == "__main__":
    die_with_parent()
    keep_orphans()
    serve(socket.socket(fileno=int(sys.argv[1])))
