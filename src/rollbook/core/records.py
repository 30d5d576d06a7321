"""The records on disk: journal lines with their turns, leases, the records of workers, seals.

A journal line is a scored rollout or a failed attempt; the token ids of its turns are in the sidecar of its segment. A
seal names exactly which bytes of which files say that a chunk is finished for its round. The class names and docstrings
are part of the JSON Schemas in core/schemas.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollbook.core.failure import Failure
from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout, Score, Timing, Turn, Usage
from rollbook.core.task import Message, Task

SCHEMA_VERSION = 1
"""The version of every file in a run directory. A change of any of their schemas is a new number."""


class TokenRef(msgspec.Struct, frozen=True, gc=False):
    """Where a turn's ids are: a record of `size` bytes at `at` in the sidecar of the line's own segment."""

    at: int
    size: int


class TurnLine(msgspec.Struct, frozen=True, gc=False):
    """A turn in a journal line; its ids are in the sidecar."""

    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    seconds: float
    model_version: str | None = None
    tokens: TokenRef | None = None

    def to_turn(self) -> Turn:
        """Return the turn without its ids."""
        return Turn(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            finish_reason=self.finish_reason,
            seconds=self.seconds,
            model_version=self.model_version,
        )


def make_turn_line(turn: Turn, tokens: TokenRef | None) -> TurnLine:
    """Return the journal's form of a turn, with the place of its ids."""
    return TurnLine(
        turn.prompt_tokens, turn.completion_tokens, turn.finish_reason, turn.seconds, turn.model_version, tokens
    )


class ScoredLine(msgspec.Struct, frozen=True, tag_field="status", tag="scored"):
    """A rollout that was scored."""

    task: str
    sample: int
    seed: int
    round: int
    attempt: int
    env: str
    reward: float
    parts: dict[str, float]
    answer: str | None
    messages: list[Message]
    turns: list[TurnLine]
    outcome: JSON
    usage: Usage
    timing: Timing
    info: dict[str, JSON]
    ended: str = ""

    def to_rollout(self, task: Task) -> Rollout:
        """Return the rollout, its turns without ids."""
        rollout = _make_rollout(self, task)
        rollout.score = Score(self.reward, self.parts, self.answer, self.info)
        return rollout


class FailedLine(msgspec.Struct, frozen=True, tag_field="status", tag="failed"):
    """A failed attempt, with the turns before the failure. `final`: the round does not retry it."""

    task: str
    sample: int
    seed: int
    round: int
    attempt: int
    env: str
    final: bool
    failure: Failure
    messages: list[Message]
    turns: list[TurnLine]
    outcome: JSON
    usage: Usage
    timing: Timing
    ended: str = ""

    def to_rollout(self, task: Task) -> Rollout:
        """Return the failed attempt, its turns without ids."""
        rollout = _make_rollout(self, task)
        rollout.failure = self.failure
        return rollout


def _make_rollout(line: ScoredLine | FailedLine, task: Task) -> Rollout:
    """Return what a scored and a failed line have in common."""
    return Rollout(
        task=task,
        sample=line.sample,
        seed=line.seed,
        round=line.round,
        attempt=line.attempt,
        messages=line.messages,
        turns=[turn.to_turn() for turn in line.turns],
        outcome=line.outcome,
        timing=line.timing,
        ended=line.ended,
    )


def make_scored_line(rollout: Rollout, refs: Sequence[TokenRef | None]) -> ScoredLine:
    """Return the line of a scored rollout whose turns' ids are at `refs`."""
    score = rollout.score
    assert score is not None
    return ScoredLine(
        rollout.task.id,
        rollout.sample,
        rollout.seed,
        rollout.round,
        rollout.attempt,
        rollout.task.env,
        score.reward,
        score.parts,
        score.answer,
        rollout.messages,
        [make_turn_line(t, ref) for t, ref in zip(rollout.turns, refs, strict=True)],
        rollout.outcome,
        rollout.usage,
        rollout.timing,
        score.info,
        rollout.ended,
    )


def make_failed_line(rollout: Rollout, refs: Sequence[TokenRef | None], final: bool) -> FailedLine:
    """Return the line of a failed attempt."""
    failure = rollout.failure
    assert failure is not None
    return FailedLine(
        rollout.task.id,
        rollout.sample,
        rollout.seed,
        rollout.round,
        rollout.attempt,
        rollout.task.env,
        final,
        failure,
        rollout.messages,
        [make_turn_line(t, ref) for t, ref in zip(rollout.turns, refs, strict=True)],
        rollout.outcome,
        rollout.usage,
        rollout.timing,
        rollout.ended,
    )


class Lease(msgspec.Struct, frozen=True):
    """A claim's content: the same for every claim of a worker, so that they can share one file."""

    worker: str
    round: int


class Held(msgspec.Struct):
    """What a worker has recorded so far in a chunk that it owns."""

    scored: int = 0
    failed: dict[str, int] = {}


class Presence(msgspec.Struct):
    """A worker's own record. The counter increases with every heartbeat; `state` is "left" after an orderly end."""

    id: str
    host: str
    boot: str
    namespace: str
    pid: int
    born: str
    round: int
    started: float
    counter: int = 0
    state: str = "working"
    place: str = ""
    """Its run directory, by device and inode: a copy of the book has none of the original's workers."""
    in_flight: int = 0
    chunks: dict[int, Held] = {}


class Extent(msgspec.Struct, frozen=True):
    """How far a file was read when the chunk was sealed, and the sha256 of those bytes."""

    bytes: int
    sha256: str


class Seal(msgspec.Struct, frozen=True):
    """The state of a sealed chunk. Lines after the extents no longer change it."""

    round: int
    epoch: int
    scored: int
    failed: dict[str, int]
    dropped: int
    files: dict[str, Extent]
