"""Calls of environment methods as messages between a worker and an environment process.

A frame is one JSON array with its length in front. Both sides import this module, so it must stay light. Also here:
which kind of failure an exception of environment code is, and how it is described.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    EnvironmentSpec,
    Message,
    Rollout,
    Task,
    TaskLine,
    TurnLine,
    make_turn_line,
)
from rollbook.errors import InvalidReward, RolloutFailed, SandboxError

FRAME_LENGTH = struct.Struct("<I")


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

    @classmethod
    def from_rollout(cls, rollout: Rollout) -> RolloutRecord:
        """Return the part of a rollout that is sent to its verifier."""
        turns = [make_turn_line(turn, None) for turn in rollout.turns]
        return cls(rollout.sample, rollout.seed, rollout.messages, turns, rollout.outcome, rollout.ended)

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
        )


class EnvironmentCall(msgspec.Struct, array_like=True):
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


class EnvironmentReply(msgspec.Struct, array_like=True):
    """The result of a call: a value, or what was raised. `failure` is one of FAILURE_KINDS, empty on success."""

    failure: str
    message: str
    value: JSON = None
    seconds: float = 0.0


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


def failure_kind(error: BaseException, default: str) -> str:
    """Return the failure kind of an exception of environment code, which can choose one by raising RolloutFailed."""
    if isinstance(error, RolloutFailed) and error.kind in FAILURE_KINDS:
        return error.kind
    if isinstance(error, InvalidReward):
        return "invalid_reward"
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
