"""The lines of a journal: what a scored rollout and a failed attempt look like on disk."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollbook.core.failure import Failure
from rollbook.core.json import JSON
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout, Timing, Usage
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.core.turn import TokenRef, TurnLine, turn_line

SCHEMA = 1
"""The version of every file in a run directory. A change of any of their schemas is a new number."""


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

    def rollout(self, task: Task) -> Rollout:
        """The rollout again, its turns without ids."""
        return Rollout(
            task=task,
            sample=self.sample,
            seed=self.seed,
            round=self.round,
            attempt=self.attempt,
            messages=self.messages,
            turns=[t.turn() for t in self.turns],
            outcome=self.outcome,
            score=Score(self.reward, self.parts, self.answer, self.info),
            timing=self.timing,
            ended=self.ended,
        )


class FailedLine(msgspec.Struct, frozen=True, tag_field="status", tag="failed"):
    """An attempt that failed, with the turns it got to. `final`: the round will not try again."""

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

    def rollout(self, task: Task) -> Rollout:
        """The failed attempt again, its turns without ids."""
        return Rollout(
            task=task,
            sample=self.sample,
            seed=self.seed,
            round=self.round,
            attempt=self.attempt,
            messages=self.messages,
            turns=[t.turn() for t in self.turns],
            outcome=self.outcome,
            failure=self.failure,
            timing=self.timing,
            ended=self.ended,
        )


def scored_line(rollout: Rollout, refs: Sequence[TokenRef | None]) -> ScoredLine:
    """The line of a scored rollout whose turns' ids lie at `refs`."""
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
        [turn_line(t, ref) for t, ref in zip(rollout.turns, refs, strict=True)],
        rollout.outcome,
        rollout.usage,
        rollout.timing,
        score.info,
        rollout.ended,
    )


def failed_line(rollout: Rollout, refs: Sequence[TokenRef | None], final: bool) -> FailedLine:
    """The line of a failed attempt."""
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
        [turn_line(t, ref) for t, ref in zip(rollout.turns, refs, strict=True)],
        rollout.outcome,
        rollout.usage,
        rollout.timing,
        rollout.ended,
    )
