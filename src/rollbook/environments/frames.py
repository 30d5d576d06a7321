"""What a worker and an environment process say to each other: one JSON array a frame, its length in front."""

from __future__ import annotations

import struct

import msgspec

from rollbook.core.json import JSON
from rollbook.core.manifest import EnvironmentSpec
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task, TaskLine
from rollbook.core.turn import TurnLine, turn_line

LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, array_like=True):
    """The first frame: what to load, and under which limits."""

    spec: EnvironmentSpec
    run: str | None
    memory_mb: int
    tool_chars: int


class Record(msgspec.Struct, array_like=True):
    """What a verifier sees of a rollout: the conversation and its outcome, never the token arrays."""

    sample: int
    seed: int
    messages: list[Message]
    turns: list[TurnLine]
    outcome: JSON = None
    ended: str = ""

    @classmethod
    def of(cls, rollout: Rollout) -> Record:
        """The part of a rollout that crosses to its verifier."""
        turns = [turn_line(turn, None) for turn in rollout.turns]
        return cls(rollout.sample, rollout.seed, rollout.messages, turns, rollout.outcome, rollout.ended)

    def rollout(self, task: Task) -> Rollout:
        """The rollout on the verifier's side."""
        turns = [line.turn() for line in self.turns]
        return Rollout(
            task=task,
            sample=self.sample,
            seed=self.seed,
            messages=list(self.messages),
            turns=turns,
            outcome=self.outcome,
            ended=self.ended,
        )


class Call(msgspec.Struct, array_like=True):
    """One method of the environment; `seat` names the state it is about, `tool` the tool it calls."""

    method: str
    task: TaskLine | None = None
    record: Record | None = None
    seat: str = ""
    tool: str = ""
    arguments: str = ""

    @property
    def where(self) -> str:
        """What it is called when it breaks."""
        return f"tool {self.tool}" if self.tool else self.method


class Reply(msgspec.Struct, array_like=True):
    """Its answer: a value, or what was raised. `failure` is a kind of core/failure.py, empty when all went well."""

    failure: str
    message: str
    value: JSON = None
    seconds: float = 0.0


def frame(value: object, encoder: msgspec.json.Encoder = msgspec.json.Encoder()) -> bytes:  # noqa: B008
    """The bytes of one frame."""
    body = encoder.encode(value)
    return LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; give the frames that are complete."""
        self._buffer += data
        found, at = [], 0
        while len(self._buffer) - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer, at)
            if len(self._buffer) - at - LENGTH.size < size:
                break
            at += LENGTH.size
            found.append(bytes(self._buffer[at : at + size]))
            at += size
        del self._buffer[:at]
        return found
