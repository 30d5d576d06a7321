"""Groups: all samples of one task, complete or not at all, waiting for whoever trains on them."""

from __future__ import annotations

import asyncio

import msgspec

from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.errors import Shortfall


class Group(msgspec.Struct, frozen=True):
    """All samples of one task, every one scored, in the order of their samples."""

    task: Task
    rollouts: list[Rollout]

    @property
    def rewards(self) -> list[float]:
        """The rewards in the order of the samples."""
        return [rollout.reward for rollout in self.rollouts]


class Groups:
    """Assembles groups from single rollouts; at most `window` of them are begun or waiting to be taken."""

    def __init__(self, samples: int, window: int) -> None:
        self._samples, self._window = samples, window
        self._parts: dict[tuple[str, int], list[Rollout]] = {}
        self._ready: asyncio.Queue[Group | Shortfall | None] = asyncio.Queue()
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
        """A rollout has ended: with its last one the group is ready, or known never to be."""
        name = (rollout.task.id, rollout.sample // self._samples)
        held = self._parts.setdefault(name, [])
        held.append(rollout)
        if len(held) < self._samples:
            return
        del self._parts[name]
        held.sort(key=lambda r: r.sample)
        self._ready.put_nowait(complete(held))

    def end(self) -> None:
        """There will be no more."""
        self._ready.put_nowait(None)

    async def take(self) -> Group | None:
        """The next complete group; None at the end; Shortfall where one cannot become complete."""
        taken = await self._ready.get()
        self._begun -= 1
        self._room.set()
        if isinstance(taken, Shortfall):
            raise taken
        return taken


def complete(rollouts: list[Rollout]) -> Group | Shortfall:
    """A group if every rollout is scored; otherwise the exception that names those that are not."""
    failures = [(r.task.id, r.sample, r.failure) for r in rollouts if r.failure]
    if not failures:
        return Group(rollouts[0].task, rollouts)
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
