"""Groups: all samples of one task. Assembles them from single rollouts, and decides which ones a trainer gets.

One policy for failures, staleness and equal rewards; everything that is drawn is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import msgspec

from rollbook.core import FAILURE_KINDS, Group, Rollout, attempts_allowed
from rollbook.errors import Shortfall, UsageError


class GroupBuffer:
    """Assembles groups from single rollouts; at most `window` of them are in progress or ready."""

    def __init__(self, samples: int, window: int) -> None:
        self._samples, self._window = samples, window
        self._parts: dict[tuple[str, int], list[Rollout]] = {}
        self._ready: asyncio.Queue[Group | None] = asyncio.Queue()
        self._open_groups = 0
        self._has_room = asyncio.Event()

    async def wait_for_room(self) -> None:
        """Wait until another group may start."""
        while self._open_groups >= self._window:
            self._has_room.clear()
            await self._has_room.wait()

    @property
    def free_slots(self) -> int:
        """How many groups may start now."""
        return self._window - self._open_groups

    def begin(self, count: int = 1) -> None:
        """Record that groups start."""
        self._open_groups += count

    def add(self, rollout: Rollout) -> None:
        """Add a finished rollout: the last one of a group makes it ready."""
        name = (rollout.task.id, rollout.sample // self._samples)
        rollouts = self._parts.setdefault(name, [])
        rollouts.append(rollout)
        if len(rollouts) < self._samples:
            return
        del self._parts[name]
        rollouts.sort(key=lambda r: r.sample)
        self._ready.put_nowait(Group(rollouts[0].task, rollouts))

    def end(self) -> None:
        """Record that there are no more groups."""
        self._ready.put_nowait(None)

    async def take(self) -> Group | None:
        """Return the next complete group; None at the end."""
        group = await self._ready.get()
        self._open_groups -= 1
        self._has_room.set()
        return group


def group_shortfall(rollouts: list[Rollout]) -> Shortfall:
    """Return the exception that names the rollouts without a score."""
    failures = [(r.task.id, r.sample, r.failure) for r in rollouts if r.failure]
    return Shortfall(
        requested=len(rollouts),
        scored=len(rollouts) - len(failures),
        failed=Counter(failure.kind for _, _, failure in failures),
        missing=[(task, sample, f"{f.kind}: {f.message}") for task, sample, f in failures],
        cause=f"probable cause: {failures[0][2].message}",
    )


OnFailure: TypeAlias = Literal["raise", "retry", "drop_group", "mask"]
EqualRewards: TypeAlias = Literal["keep", "drop"]

EXTRA_ATTEMPTS = 2
"""What `retry` adds to the attempts of every failure kind, also of those that usually have only one."""


class GroupCounts(msgspec.Struct):
    """The counts of all groups that were drawn: drawn = given + dropped_* + open."""

    drawn: int = 0
    given: int = 0
    dropped_failed: int = 0
    dropped_stale: int = 0
    dropped_equal: int = 0
    scored: int = 0
    """Rollouts of the groups that ended."""
    failed: int = 0
    masked: int = 0
    """Failed rollouts that a trainer got, to mask them."""
    retried: int = 0
    """Rollouts that took more than one attempt."""

    @property
    def open(self) -> int:
        """Groups that started and were not given to a trainer: in flight, ready, or left when a stream was closed."""
        return self.drawn - self.given - self.dropped_failed - self.dropped_stale - self.dropped_equal


class GroupPolicy(msgspec.Struct, frozen=True):
    """Which groups a trainer gets. `on_failure` applies to a group with a rollout that finally failed.

    raise: Shortfall. retry: more attempts first, then Shortfall. drop_group: the whole group is dropped. mask: the
    group keeps its failed rollouts, to be trained with an all-zero mask and outside its statistics; one in which all
    failed is dropped.
    """

    on_failure: OnFailure = "raise"
    equal_rewards: EqualRewards = "keep"
    """Whether to keep a group whose scored rollouts all have the same reward, from which nothing is learned."""
    max_staleness: int | None = None
    """How many weight versions the oldest turn of a group may be behind."""

    def __post_init__(self) -> None:
        for name, kind in (("on_failure", OnFailure), ("equal_rewards", EqualRewards)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(f"{name}={getattr(self, name)!r}: one of {', '.join(get_args(kind))}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise UsageError(f"max_staleness={self.max_staleness}: give a number of versions from 0 on")

    def attempt_budgets(self, own: Mapping[str, int]) -> dict[str, int]:
        """Return how many attempts each failure kind has."""
        if self.on_failure != "retry":
            return dict(own)
        return {kind: attempts_allowed(kind, own) + EXTRA_ATTEMPTS for kind in FAILURE_KINDS}

    def passes(self, group: Group, staleness: int, counts: GroupCounts) -> bool:
        """Return whether a trainer gets this group; count it either way. Raises Shortfall where the policy says so."""
        failed = len(group.failed)
        counts.scored += len(group.rollouts) - failed
        counts.failed += failed
        counts.retried += sum(rollout.attempt > 1 for rollout in group.rollouts)
        if failed and self.on_failure in ("raise", "retry"):
            raise group_shortfall(group.rollouts)
        why = self._drop_reason(group, staleness)
        if why:
            setattr(counts, why, getattr(counts, why) + 1)
            return False
        counts.given += 1
        counts.masked += failed
        return True

    def _drop_reason(self, group: Group, staleness: int) -> str:
        several = len(group.rollouts) > 1  # a caller that collects single rollouts handles failed ones itself
        if group.failed and (self.on_failure == "drop_group" or (several and not group.scored)):
            return "dropped_failed"
        if self.max_staleness is not None and staleness > self.max_staleness:
            return "dropped_stale"
        if self.equal_rewards == "drop" and len({rollout.reward for rollout in group.scored}) < 2:
            return "dropped_equal"
        return ""
