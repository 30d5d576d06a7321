"""The lines of a journal: a scored rollout or a failed attempt, with its turns and a checksum.

The token ids of the turns are in the sidecar of the line's segment. The class names and docstrings are part of the JSON
Schemas in core/schemas.

Since schema 2 every line ends with its checksum (checksums.py). Lines that are added to a book of schema 1 have it too;
a journal file has it on every line or on none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollbook.core.failure import Failure
from rollbook.core.json import JSON
from rollbook.core.roles import RoleCall
from rollbook.core.rollout import Rollout, Score, Timing, Turn, Usage
from rollbook.core.task import Message, Task

SCHEMA_VERSION = 2
"""The version of every file in a new run directory. A change of any of their schemas is a new number.

Schema 1 has no checksum in journal lines; such run directories are read, resumed and extended, and stay schema 1.
"""

CHECKSUM_SCHEMA = 2
"""Every journal line of a book of this schema or a later one has a checksum."""


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
    cached_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """How many tokens of the prompt the server had cached; absent where it does not say."""

    def to_turn(self) -> Turn:
        """Return the turn without its ids."""
        return Turn(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            finish_reason=self.finish_reason,
            seconds=self.seconds,
            model_version=self.model_version,
            cached_tokens=None if self.cached_tokens is msgspec.UNSET else self.cached_tokens,
        )


def make_turn_line(turn: Turn, tokens: TokenRef | None) -> TurnLine:
    """Return the journal's form of a turn, with the place of its ids."""
    return TurnLine(
        turn.prompt_tokens,
        turn.completion_tokens,
        turn.finish_reason,
        turn.seconds,
        turn.model_version,
        tokens,
        msgspec.UNSET if turn.cached_tokens is None else turn.cached_tokens,
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
    role_calls: list[RoleCall] | msgspec.UnsetType = msgspec.UNSET
    """The calls of the models of roles; absent where there were none."""
    crc: str | msgspec.UnsetType = msgspec.UNSET
    """The checksum of the line, added when it is written; lines of schema 1 have none."""

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
    role_calls: list[RoleCall] | msgspec.UnsetType = msgspec.UNSET
    """The calls of the models of roles; absent where there were none."""
    crc: str | msgspec.UnsetType = msgspec.UNSET
    """The checksum of the line, added when it is written; lines of schema 1 have none."""

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
        role_calls=line.role_calls if isinstance(line.role_calls, list) else [],
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
        rollout.role_calls or msgspec.UNSET,
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
        rollout.role_calls or msgspec.UNSET,
    )
