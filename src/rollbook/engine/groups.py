"""Groups: all samples of one task. Assembles them from single rollouts, and decides which ones a trainer gets.

One policy for failures, staleness and equal rewards; everything that is drawn is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import msgspec

from rollbook.core import FAILURE_KINDS, Rollout, Task, attempts_allowed
from rollbook.errors import Shortfall, UsageError


class Group(msgspec.Struct, frozen=True):
    """All samples of one task, in their order. All are scored, unless the policy is to mask those that failed."""

    task: Task
    rollouts: list[Rollout]

    @property
    def rewards(self) -> list[float]:
        """The rewards in the order of the samples; a failed one has none and raises."""
        return [rollout.reward for rollout in self.rollouts]

    @property
    def scored(self) -> list[Rollout]:
        """Those that have a reward: the group's statistics are over them alone."""
        return [rollout for rollout in self.rollouts if rollout.score]

    @property
    def failed(self) -> list[Rollout]:
        """Those that have none."""
        return [rollout for rollout in self.rollouts if rollout.failure]


class GroupBuffer:
    """Assembles groups from single rollouts; at most `window` of them are begun or waiting to be taken."""

    def __init__(self, samples: int, window: int) -> None:
        self._samples, self._window = samples, window
        self._parts: dict[tuple[str, int], list[Rollout]] = {}
        self._ready: asyncio.Queue[Group | None] = asyncio.Queue()
        self._open_groups = 0
        self._has_room = asyncio.Event()

    async def wait_for_room(self) -> None:
        """Wait until another group may be begun."""
        while self._open_groups >= self._window:
            self._has_room.clear()
            await self._has_room.wait()

    @property
    def free_slots(self) -> int:
        """How many groups may be begun now."""
        return self._window - self._open_groups

    def begin(self, count: int = 1) -> None:
        """Groups are begun."""
        self._open_groups += count

    def add(self, rollout: Rollout) -> None:
        """A rollout has ended: with its last one the group is ready."""
        name = (rollout.task.id, rollout.sample // self._samples)
        held = self._parts.setdefault(name, [])
        held.append(rollout)
        if len(held) < self._samples:
            return
        del self._parts[name]
        held.sort(key=lambda r: r.sample)
        self._ready.put_nowait(Group(held[0].task, held))

    def end(self) -> None:
        """There will be no more."""
        self._ready.put_nowait(None)

    async def take(self) -> Group | None:
        """The next group of which every sample has ended; None at the end."""
        taken = await self._ready.get()
        self._open_groups -= 1
        self._has_room.set()
        return taken


def group_shortfall(rollouts: list[Rollout]) -> Shortfall:
    """The exception that names those of the rollouts that have no score."""
    failures = [(r.task.id, r.sample, r.failure) for r in rollouts if r.failure]
    kinds: dict[str, int] = {}
    for _, _, failure in failures:
        kinds[failure.kind] = kinds.get(failure.kind, 0) + 1
    return Shortfall(
        requested=len(rollouts),
        scored=len(rollouts) - len(failures),
        failed=kinds,
        missing=[(task, sample, f"{f.kind}: {f.message}") for task, sample, f in failures],
        cause=f"probable cause: {failures[0][2].message}",
    )


OnFailure: TypeAlias = Literal["raise", "retry", "drop_group", "mask"]
EqualRewards: TypeAlias = Literal["keep", "drop"]

EXTRA_ATTEMPTS = 2
"""What `retry` adds to the attempts that every kind of failure has, also to those that usually have only one."""


class GroupCounts(msgspec.Struct):
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


class GroupPolicy(msgspec.Struct, frozen=True):
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

    def attempt_budgets(self, own: Mapping[str, int]) -> dict[str, int]:
        """How many attempts each kind of failure has."""
        if self.on_failure != "retry":
            return dict(own)
        return {kind: attempts_allowed(kind, own) + EXTRA_ATTEMPTS for kind in FAILURE_KINDS}

    def passes(self, group: Group, staleness: int, counts: GroupCounts) -> bool:
        """Whether a trainer gets this group; counts it either way. Shortfall where the policy is to raise."""
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
        several = len(group.rollouts) > 1  # whoever collects single rollouts sees to those that failed himself
        if group.failed and (self.on_failure == "drop_group" or (several and not group.scored)):
            return "dropped_failed"
        if self.max_staleness is not None and staleness > self.max_staleness:
            return "dropped_stale"
        if self.equal_rewards == "drop" and len({rollout.reward for rollout in group.scored}) < 2:
            return "dropped_equal"
        return ""
