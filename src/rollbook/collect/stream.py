"""The desks of a Collector: tasks come one by one, their marks go to memory or to a book that grows with them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from rollbook.book.book import Book
from rollbook.book.ledger import Past
from rollbook.collect.group import Groups
from rollbook.collect.job import Job
from rollbook.collect.shift import Shift
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task

BLOCK = 64


class MemoryDesk:
    """Every task becomes `samples` jobs; nothing is kept once its group is taken."""

    def __init__(self, tasks: AsyncIterator[Task], samples: int, groups: Groups, used: dict[str, int]) -> None:
        self._tasks, self._samples, self._groups, self._used = tasks, samples, groups, used
        self._jobs: deque[Job] = deque()
        self._pulling = asyncio.Lock()
        self._over = False

    async def next(self) -> Job | None:
        """The next sample of the present task, or the first of the next one."""
        while True:
            if self._jobs:
                return self._jobs.popleft()
            async with self._pulling:
                if self._jobs:
                    continue
                if self._over or not await self._pull():
                    return None

    async def _pull(self) -> bool:
        await self._groups.room()
        task = await anext(self._tasks, None)
        if task is None:
            self._over = True
            return False
        first = self._used.get(task.id, 0)
        self._used[task.id] = first + self._samples
        self._groups.begin()
        self._jobs.extend(Job(task, first + i, Past()) for i in range(self._samples))
        return True

    async def mark(self, job: Job, rollout: Rollout, final: bool) -> None:
        """Only ends are of interest."""
        if final:
            self._groups.add(rollout)

    def idle(self) -> None:
        """Nothing waits for company here."""


class BookDesk:
    """The same over a book: tasks are written into it in blocks as they come, then worked off like any chunk."""

    def __init__(
        self, tasks: AsyncIterator[Task], samples: int, groups: Groups, book: Book, shift: Shift, env: str
    ) -> None:
        self._tasks, self._samples, self._groups = tasks, samples, groups
        self._book, self._shift, self._env = book, shift, env
        self._pulling = asyncio.Lock()
        self._over = False

    async def next(self) -> Job | None:
        """A key of the book; more tasks are written into it when its keys run out."""
        while True:
            job = self._shift.ready()
            if job is not None:
                return job
            async with self._pulling:
                job = self._shift.ready()
                if job is None and not await self._pull():
                    return None
            if job is not None:
                return job

    async def _pull(self) -> bool:
        if self._over:
            return False
        await self._groups.room()
        block: list[Task] = []
        while len(block) < min(BLOCK, self._groups.free) and not self._over:
            task = await anext(self._tasks, None)
            if task is None:
                self._over = True
            else:
                block.append(task)
        if not block:
            return False
        self._groups.begin(len(block))
        await asyncio.to_thread(self._book.ask, block, self._env, self._samples)
        while await self._shift.claim():
            continue
        return True

    async def mark(self, job: Job, rollout: Rollout, final: bool) -> None:
        """Into the journal; the group hears of it once it is durable."""
        await self._shift.mark(job, rollout, final)

    def idle(self) -> None:
        """What is written need not wait for company."""
        self._shift.idle()
