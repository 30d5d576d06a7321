"""A sample: what a trainer is given of one rollout. Failed rollouts have an all-zero mask and no reward."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollbook.core.rollout import Rollout
from rollbook.errors import TokenError, UsageError
from rollbook.tokens import Sequence, merge


class Sample(msgspec.Struct, frozen=True):
    """The sequences of a rollout; none where no token of it is known. `reward` is None where it failed."""

    rollout: Rollout
    sequences: list[Sequence]
    reward: float | None

    @property
    def masked(self) -> bool:
        """Whether it is out of its group's statistics, and nothing of it is trained."""
        return self.reward is None

    @property
    def last(self) -> Sequence | None:
        """The sequence that the rollout ended with: the only one, unless it forked."""
        return self.sequences[-1] if self.sequences else None

    @property
    def untrained(self) -> int:
        """Sampled tokens that a trainer of one sequence a rollout does not see."""
        return sum(sequence.trained for sequence in self.sequences[:-1])

    @property
    def versions(self) -> list[str]:
        """The versions of the weights that its turns were sampled with, where they are known."""
        return [turn.model_version for turn in self.rollout.turns if turn.model_version is not None]


def sample_of(rollout: Rollout) -> Sample:
    """What is trained of a rollout; TokenError if it was scored and its server reported no ids.

    >>> from rollbook.core.failure import Failure
    >>> from rollbook.core.task import Task
    >>> from rollbook.core.turn import Turn
    >>> broke = Failure("verifier_error", "data", "verify", "broke")
    >>> turns = [Turn([1, 2], [3, 4], [-0.5, -0.25])]
    >>> sample_of(Rollout(task=Task("t", "?"), sample=0, seed=0, turns=turns, failure=broke)).sequences[0].mask
    [0, 0]
    """
    if rollout.score is not None:
        return Sample(rollout, _told(rollout), rollout.score.reward)
    try:
        return Sample(rollout, [masked(sequence) for sequence in merge(rollout.turns)], None)
    except TokenError:  # that its tokens are not known may be why it failed
        return Sample(rollout, [], None)


def _told(rollout: Rollout) -> list[Sequence]:
    try:
        return merge(rollout.turns)
    except TokenError as error:
        raise TokenError(f"rollout {rollout.task.id}#{rollout.sample}: {error}") from None


def all_scored(samples: Iterable[Sample], trainer: str) -> None:
    """Refuse masked rollouts where a trainer would take them to have a reward of 0 in their group."""
    for sample in samples:
        if sample.masked:
            task, number = sample.rollout.key
            why = f"{trainer} has no place for it: it needs a reward of every row"
            raise UsageError(f"rollout {task}#{number} failed, and {why}; use on_failure raise, retry or drop_group")


def masked(sequence: Sequence) -> Sequence:
    """The same ids, none of them trained."""
    length = len(sequence.response_ids)
    return Sequence(sequence.prompt_ids, sequence.response_ids, [0] * length, [0.0] * length, sequence.fork)
