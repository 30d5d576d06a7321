"""Calls of environment methods as messages between a worker and an environment process.

A frame is one JSON array with its length in front. Both sides import this module, so it must stay light. Also here:
which kind of failure an exception of environment code is, and how it is described.

While a call runs, it may ask its worker: the model of a role (ModelAsk, ModelAnswer), or the container of its rollout
(ContainerRequest, ContainerAnswer). Calls that were sent ahead may come before the answer.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    EnvironmentSpec,
    Message,
    RoleCall,
    Rollout,
    Task,
    TaskLine,
    TurnLine,
    make_turn_line,
)
from rollbook.errors import ContainerError, ImageError, InvalidReward, RolloutFailed, SandboxError

if TYPE_CHECKING:
    import socket

FRAME_LENGTH = struct.Struct("<I")
RECEIVE_BYTES = 1 << 18


class StartMessage(msgspec.Struct, array_like=True):
    """The first frame: what to load, and under which limits."""

    spec: EnvironmentSpec
    run: str | None
    memory_mb: int
    tool_chars: int


class RolloutRecord(msgspec.Struct, array_like=True):
    """The part of a rollout that a verifier gets: the conversation and its outcome, never the token arrays."""

    sample: int
    seed: int
    messages: list[Message]
    turns: list[TurnLine]
    outcome: JSON = None
    ended: str = ""
    role_calls: list[RoleCall] = []

    @classmethod
    def from_rollout(cls, rollout: Rollout) -> RolloutRecord:
        """Return the part of a rollout that is sent to its verifier."""
        turns = [make_turn_line(turn, None) for turn in rollout.turns]
        return cls(
            rollout.sample, rollout.seed, rollout.messages, turns, rollout.outcome, rollout.ended, rollout.role_calls
        )

    def to_rollout(self, task: Task) -> Rollout:
        """Return the rollout for the verifier."""
        turns = [line.to_turn() for line in self.turns]
        return Rollout(
            task=task,
            sample=self.sample,
            seed=self.seed,
            messages=list(self.messages),
            turns=turns,
            outcome=self.outcome,
            ended=self.ended,
            role_calls=list(self.role_calls),
        )


class EnvironmentCall(msgspec.Struct, array_like=True, tag=0):
    """A call of one method of the environment; `session` names the state it uses, `tool` the tool it calls."""

    method: str
    task: TaskLine | None = None
    record: RolloutRecord | None = None
    session: str = ""
    tool: str = ""
    arguments: str = ""

    @property
    def where(self) -> str:
        """The name of the call in failures."""
        return f"tool {self.tool}" if self.tool else self.method


class EnvironmentReply(msgspec.Struct, array_like=True, tag=0):
    """The result of a call: a value, or what was raised. `failure` is one of FAILURE_KINDS, empty on success."""

    failure: str
    message: str
    value: JSON = None
    seconds: float = 0.0


class ModelAsk(msgspec.Struct, array_like=True, tag=1):
    """A question of the call that runs in the process to the model of a role."""

    role: str
    messages: list[Message]
    sampling: dict[str, JSON] = {}


class ModelAnswer(msgspec.Struct, array_like=True, tag=1):
    """The answer to a ModelAsk: the recorded call, or why there is none, as in EnvironmentReply."""

    failure: str
    message: str
    call: RoleCall | None = None


class ContainerRequest(msgspec.Struct, array_like=True, tag=2):
    """What a method in an environment process wants of the container of its rollout, before its reply."""

    session: str
    method: str
    arguments: dict[str, JSON]
    data: bytes = b""


class ContainerAnswer(msgspec.Struct, array_like=True, tag=2):
    """What became of a request: a value and bytes, or the name of an exception and its message."""

    error: str = ""
    message: str = ""
    value: JSON = None
    data: bytes = b""


def encode_frame(value: object, encoder: msgspec.json.Encoder = msgspec.json.Encoder()) -> bytes:  # noqa: B008
    """Return the bytes of one frame."""
    body = encoder.encode(value)
    return FRAME_LENGTH.pack(len(body)) + body


class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the bodies of the frames that are now complete."""
        self._buffer += data
        bodies, at = [], 0
        while len(self._buffer) - at >= FRAME_LENGTH.size:
            (size,) = FRAME_LENGTH.unpack_from(self._buffer, at)
            if len(self._buffer) - at - FRAME_LENGTH.size < size:
                break
            at += FRAME_LENGTH.size
            bodies.append(bytes(self._buffer[at : at + size]))
            at += size
        del self._buffer[:at]
        return bodies


Answer = TypeVar("Answer", ModelAnswer, ContainerAnswer)


class WorkerChannel:
    """The environment process's end of its channel: calls come in, replies go out, and a call may ask in between."""

    def __init__(self, channel: socket.socket) -> None:
        self._socket, self._frames = channel, FrameReader()
        self._bodies: deque[bytes] = deque()
        self._calls: deque[EnvironmentCall] = deque()
        self._decode = msgspec.json.Decoder(EnvironmentCall | ModelAnswer | ContainerAnswer).decode
        self._asking, self._pid = threading.Lock(), os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this is a process that the environment forked: the channel is not its own."""
        return os.getpid() != self._pid

    def send(self, frame: bytes) -> None:
        """Send a whole frame."""
        self._socket.sendall(frame)

    def receive(self) -> bytes | None:
        """Return the body of the next frame; None once the worker is gone."""
        while not self._bodies:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                return None
            self._bodies.extend(self._frames.feed(data))
        return self._bodies.popleft()

    def calls(self) -> Iterator[EnvironmentCall]:
        """Yield calls until the worker is gone: first those that came while a call asked."""
        while True:
            if self._calls:
                yield self._calls.popleft()
            elif (body := self.receive()) is None:
                return
            elif isinstance(frame := self._decode(body), EnvironmentCall):  # else the call that had asked has ended
                yield frame

    def exchange(self, request: ModelAsk | ContainerRequest, answer_type: type[Answer]) -> Answer:
        """Send a request of the running call, and wait for its answer. Threads of the environment wait in turn."""
        with self._asking:
            self.send(encode_frame(request))
            while (body := self.receive()) is not None:
                frame = self._decode(body)
                if isinstance(frame, answer_type):
                    return frame
                if isinstance(frame, EnvironmentCall):
                    self._calls.append(frame)
        os._exit(0)  # the worker is gone, so nobody waits for this call


def failure_kind(error: BaseException, default: str) -> str:
    """Return the failure kind of an exception of environment code, which can choose one by raising RolloutFailed."""
    if isinstance(error, RolloutFailed) and error.kind in FAILURE_KINDS:
        return error.kind
    if isinstance(error, InvalidReward):
        return "invalid_reward"
    if isinstance(error, ContainerError):
        return "image_error" if isinstance(error, ImageError) else "container_error"
    return "sandbox_error" if isinstance(error, SandboxError) else default


def describe_exception(error: BaseException, *, location: bool = True) -> str:
    """Describe an exception of environment code by type, message and line; our own only by their message."""
    if isinstance(error, RolloutFailed):
        return error.message
    if isinstance(error, InvalidReward):
        return str(error)
    trace = error.__traceback__ if location else None
    while trace and trace.tb_next:
        trace = trace.tb_next
    where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{where}"
