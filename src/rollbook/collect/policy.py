"""What a trainer gets of the groups that were collected: one rule for failures, age and equal rewards, all counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import msgspec

from rollbook.collect.group import Group, shortfall
from rollbook.core.failure import KINDS, attempts_allowed
from rollbook.errors import UsageError

OnFailure: TypeAlias = Literal["raise", "retry", "drop_group", "mask"]
EqualRewards: TypeAlias = Literal["keep", "drop"]

MORE_ATTEMPTS = 2
"""What `retry` adds to the attempts that every kind of failure has, also to those that usually have only one."""


class Counts(msgspec.Struct):
    """What became of everything that was drawn. Groups: drawn = given + dropped_* + open."""

    drawn: int = 0
    given: int = 0
    dropped_failed: int = 0
    dropped_stale: int = 0
    dropped_equal: int = 0
    scored: int = 0
    """Rollouts, of the groups that ended."""
    failed: int = 0
    masked: int = 0
    """Failed rollouts that were handed out, for a trainer to mask."""
    retried: int = 0
    """Rollouts that took more than one attempt."""

    @property
    def open(self) -> int:
        """Groups begun and not handed out: in flight, waiting, or left when a stream was closed."""
        return self.drawn - self.given - self.dropped_failed - self.dropped_stale - self.dropped_equal


class Policy(msgspec.Struct, frozen=True):
    """`on_failure` says what becomes of a group in which a rollout failed for good.

    raise: Shortfall. retry: more attempts first, then Shortfall. drop_group: the whole group is left out. mask: the
    group is handed out with the failed rollouts in it, to be trained with an all-zero mask and outside its statistics;
    one in which all failed is left out.
    """

    on_failure: OnFailure = "raise"
    equal_rewards: EqualRewards = "keep"
    """Whether a group whose scored rollouts all have one reward, which teaches nothing, is handed out."""
    max_staleness: int | None = None
    """By how many versions of the weights the oldest turn of a group may be behind."""

    def __post_init__(self) -> None:
        for name, kind in (("on_failure", OnFailure), ("equal_rewards", EqualRewards)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(f"{name}={getattr(self, name)!r}: one of {', '.join(get_args(kind))}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise UsageError(f"max_staleness={self.max_staleness}: give a number of versions from 0 on")

    def budgets(self, own: Mapping[str, int]) -> dict[str, int]:
        """How many attempts each kind of failure has."""
        if self.on_failure != "retry":
            return dict(own)
        return {kind: attempts_allowed(kind, own) + MORE_ATTEMPTS for kind in KINDS}

    def passes(self, group: Group, staleness: int, counts: Counts) -> bool:
        """Whether a trainer gets this group; counts it either way. Shortfall where the policy is to raise."""
        failed = len(group.failed)
        counts.scored += len(group.rollouts) - failed
        counts.failed += failed
        counts.retried += sum(rollout.attempt > 1 for rollout in group.rollouts)
        if failed and self.on_failure in ("raise", "retry"):
            raise shortfall(group.rollouts)
        why = self._dropped(group, staleness)
        if why:
            setattr(counts, why, getattr(counts, why) + 1)
            return False
        counts.given += 1
        counts.masked += failed
        return True

    def _dropped(self, group: Group, staleness: int) -> str:
        several = len(group.rollouts) > 1  # whoever collects single rollouts sees to those that failed himself
        if group.failed and (self.on_failure == "drop_group" or (several and not group.scored)):
            return "dropped_failed"
        if self.max_staleness is not None and staleness > self.max_staleness:
            return "dropped_stale"
        if self.equal_rewards == "drop" and len({rollout.reward for rollout in group.scored}) < 2:
            return "dropped_equal"
        return ""
