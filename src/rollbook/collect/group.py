"""Groups: all samples of one task, every one ended, waiting for whoever trains on them."""

from __future__ import annotations

import asyncio

import msgspec

from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.errors import Shortfall


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


class Groups:
    """Assembles groups from single rollouts; at most `window` of them are begun or waiting to be taken."""

    def __init__(self, samples: int, window: int) -> None:
        self._samples, self._window = samples, window
        self._parts: dict[tuple[str, int], list[Rollout]] = {}
        self._ready: asyncio.Queue[Group | None] = asyncio.Queue()
        self._begun = 0
        self._room = asyncio.Event()

    async def room(self) -> None:
        """Wait until another group may be begun."""
        while self._begun >= self._window:
            self._room.clear()
            await self._room.wait()

    @property
    def free(self) -> int:
        """How many groups may be begun now."""
        return self._window - self._begun

    def begin(self, count: int = 1) -> None:
        """Groups are begun."""
        self._begun += count

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
        self._begun -= 1
        self._room.set()
        return taken


def shortfall(rollouts: list[Rollout]) -> Shortfall:
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
