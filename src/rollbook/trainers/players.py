"""Environments held open for a trainer that brings its own tasks: each task goes in once, and comes out as a rollout.

Behind each pair of environment and sampling stands one Collector, opened when it is first needed. A failed rollout
comes out like any other: what becomes of its group is for `collect.policy.Policy` to say, who sees the whole of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType

from rollbook.collect.blend import Entry, limited, sampled
from rollbook.collect.collector import Collector
from rollbook.collect.policy import OnFailure, Policy
from rollbook.core.json import JSON, encode
from rollbook.core.manifest import Limits, Sampling
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.errors import Stopped, UsageError
from rollbook.trainers.rows import agent_of, environment_of, tasks_of

CLOSED = "the environments were closed while rollouts were under way"


class Players:
    """Plays single tasks in several environments, named as the rows of the trainer name them."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        model: list[str],
        *,
        model_name: str = "",
        on_failure: OnFailure = "raise",
        continue_tokens: bool = False,
        seed: int = 0,
        concurrency: int = 256,
        attempts: Mapping[str, int] | None = None,
        outage_s: float = 300.0,
    ) -> None:
        if not entries:
            raise UsageError("no environments: name at least one")
        self._entries, self._model, self._model_name = dict(entries), model, model_name
        self._continues, self._seed, self._concurrency = continue_tokens, seed, concurrency
        self._outage_s = outage_s
        self._attempts = Policy(on_failure).budgets(attempts or {})
        self._tables: dict[bytes, _Table] = {}
        self._opening = asyncio.Lock()
        self._version: str | None = None
        self._paused = self._closed = False

    async def __aenter__(self) -> Players:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        while self._tables:
            await self._tables.popitem()[1].close()

    def named(self, name: str | None) -> str:
        """The environment that a row means; the only one, if there is but one."""
        if len(self._entries) == 1:
            return next(iter(self._entries))
        if name in self._entries:
            return str(name)
        told = f"agent_ref {name!r}" if name else "no agent_ref"
        raise UsageError(
            f"a row with {told}: of several environments it must name one; known: {', '.join(self._entries)}"
        )

    def routed(self, rows: Sequence[Mapping[str, JSON]]) -> list[tuple[str, Task]]:
        """The environment and the task of every row, in their order."""
        names = [self.named(agent_of(row)) for row in rows]
        found: dict[int, tuple[str, Task]] = {}
        for name in dict.fromkeys(names):
            places = [place for place, own in enumerate(names) if own == name]
            tasks = tasks_of(self._entries[name], [rows[place] for place in places], places)
            found |= {place: (name, task) for place, task in zip(places, tasks, strict=True)}
        return [found[place] for place in range(len(rows))]

    async def play(self, name: str, task: Task, sampling: Sampling) -> Rollout:
        """Carry one task to a score or a failure."""
        return await (await self._table(name, sampling)).play(task)

    async def pause(self) -> None:
        """Before a weight update: no new model call begins, those under way are waited for."""
        self._paused = True
        await asyncio.gather(*(table.collector.pause() for table in self._tables.values()))

    def resume(self, version: str | None = None) -> None:
        """After it: calls go on, and are stamped with the new version."""
        self._version, self._paused = version or self._version, False
        for table in self._tables.values():
            table.collector.resume(version)

    async def _table(self, name: str, sampling: Sampling) -> _Table:
        key = encode([name, sampling])
        async with self._opening:
            if key in self._tables and self._tables[key].broken:
                await self._tables.pop(key).close()  # an outage ends with those who waited through it
            if key not in self._tables:
                self._tables[key] = await self._opened(_Table(self._collector(self._entries[name], sampling)))
            return self._tables[key]

    async def _opened(self, table: _Table) -> _Table:
        """A table as it has to be by the time it is open: opening takes a while."""
        await table.open()
        if self._closed:
            await table.close()
            raise Stopped(CLOSED)
        table.collector.resume(self._version)
        if self._paused:
            await table.collector.pause()
        return table

    def _collector(self, entry: Entry, sampling: Sampling) -> Collector:
        attempts: dict[str, JSON] = dict(self._attempts)
        return Collector(
            environment_of(entry),
            self._model,
            model_name=self._model_name,
            seed=self._seed,
            sampling=sampled(sampling, entry.sampling),
            limits=limited(Limits(), entry.limits),
            tool_format=entry.tool_format or "auto",
            continue_tokens=self._continues,
            on_failure="mask",
            concurrency=self._concurrency,
            attempts=attempts,
            outage_s=self._outage_s,
        )


class _Table:
    """A Collector whose tasks come from a queue, and whose rollouts go to whoever waits for them."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self._tasks: asyncio.Queue[Task] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[Rollout]] = {}
        self.broken: BaseException | None = None

    async def open(self) -> None:
        await self.collector.__aenter__()
        self._serving = asyncio.create_task(self._serve(), name="players")

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        await self.collector.__aexit__(None, None, None)

    async def play(self, task: Task) -> Rollout:
        if self.broken is not None:
            raise self.broken
        own = copy_of(task)
        future: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        self._waiting[id(own)] = future
        self._tasks.put_nowait(own)
        try:
            return await future
        finally:
            self._waiting.pop(id(own), None)

    async def _serve(self) -> None:
        """Hand out rollouts by the very task they belong to; what ends the stream ends every wait."""
        try:
            async for group in self.collector.groups(self._endless()):
                future = self._waiting.get(id(group.task))
                if future is not None and not future.done():
                    future.set_result(group.rollouts[0])
        except asyncio.CancelledError:
            self._fail(Stopped(CLOSED))
            raise
        except Exception as error:  # noqa: BLE001 - it is raised to everyone who waits
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.broken = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    async def _endless(self) -> AsyncIterator[Task]:
        while True:
            yield await self._tasks.get()


def copy_of(task: Task) -> Task:
    """A task of the same content that is nobody else's: rollouts are told apart by it."""
    return Task.from_line(task.line())
