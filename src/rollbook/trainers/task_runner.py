"""Environments kept open for a trainer that brings its own tasks: each task goes in once and comes out as a rollout.

Behind each pair of environment and sampling there is one Collector, opened when it is first needed. A failed rollout
is returned like any other: the failure policy, which sees the whole group, decides what becomes of the group.
`BackgroundLoop` is an event loop on a thread of its own, for trainers that call us from a thread of theirs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from rollbook.core import JSON, Limits, Rollout, Sampling, Task, encode
from rollbook.engine import Collector, Entry, GroupPolicy, OnFailure, merge_limits, merge_sampling
from rollbook.errors import RollbookError, Stopped, UsageError
from rollbook.trainers.formats import fail_if_unsampled
from rollbook.trainers.rows import MissingReason, make_environment, read_environment_name, read_tasks

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines on another thread. Its creator closes it; a program that exits does not wait for it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[None, None, T]) -> Future[T]:
        """Start a coroutine without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Run a coroutine to its end; an interrupt of the caller cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and its thread."""
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


CLOSED_MESSAGE = "the environments were closed while rollouts were under way"


class TaskRunner:
    """Runs single tasks in several environments, named as the trainer's rows name them.

    With `limits_rows` the `max_tokens` of a sampling is the trainer's window: all turns of a rollout together, and what
    the environment adds between them, have so many tokens, unless an environment's own `limits` say otherwise.
    `unsampled` counts the rollouts that were scored without a sampled token, which trainers get as failed ones.
    """

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
        limits_rows: bool = False,
    ) -> None:
        if not entries:
            raise UsageError("no environments: name at least one")
        self._entries, self._model, self._model_name = dict(entries), model, model_name
        self._continues, self._seed, self._concurrency = continue_tokens, seed, concurrency
        self._outage_s, self._limits_rows = outage_s, limits_rows
        self._attempts = GroupPolicy(on_failure).attempt_budgets(attempts or {})
        self._tables: dict[bytes, _CollectorQueue] = {}
        self._openings: dict[bytes, asyncio.Task[_CollectorQueue]] = {}
        self._version: str | None = None
        self._paused = self._closed = False
        self.unsampled = 0

    async def __aenter__(self) -> TaskRunner:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        while self._tables:
            await self._tables.popitem()[1].close()

    def find_environment(self, name: str | None) -> str:
        """Return the environment that a row names, or the only one."""
        if len(self._entries) == 1:
            return next(iter(self._entries))
        if name in self._entries:
            return str(name)
        told = f"agent_ref {name!r}" if name else "no agent_ref"
        raise UsageError(
            f"a row with {told}: with several environments it must name one; known: {', '.join(self._entries)}"
        )

    def route_rows(self, rows: Sequence[Mapping[str, JSON]]) -> list[tuple[str, Task]]:
        """Return the environment and the task of every row, in order."""
        names = [self.find_environment(read_environment_name(row)) for row in rows]
        found: dict[int, tuple[str, Task]] = {}
        for name in dict.fromkeys(names):
            places = [place for place, own in enumerate(names) if own == name]
            tasks = read_tasks(self._entries[name], [rows[place] for place in places], places)
            found |= {place: (name, task) for place, task in zip(places, tasks, strict=True)}
        return [found[place] for place in range(len(rows))]

    async def run_task(self, name: str, task: Task, sampling: Sampling) -> Rollout:
        """Run one task to a score or a failure; for a trainer one without a sampled token is a failure."""
        rollout = await (await self._get_collector(name, sampling)).run_task(task)
        trained = fail_if_unsampled(rollout)
        self.unsampled += trained is not rollout
        return trained

    async def try_task(self, name: str, task: Task, sampling: Sampling) -> Rollout | MissingReason:
        """Run one task; instead of an error that ended it, for example an outage, return why there is no rollout."""
        try:
            return await self.run_task(name, task, sampling)
        except UsageError:
            raise
        except RollbookError as error:
            return MissingReason("infra" if isinstance(error, Stopped) else "data", str(error))

    async def pause(self) -> None:
        """Start no new model call and wait for those in progress, before a weight update."""
        self._paused = True
        await asyncio.gather(*(table.collector.pause() for table in self._tables.values()))

    def resume(self, version: str | None = None) -> None:
        """Resume model calls after a weight update, and record the new version on them."""
        self._version, self._paused = version or self._version, False
        for table in self._tables.values():
            table.collector.resume(version)

    async def _get_collector(self, name: str, sampling: Sampling) -> _CollectorQueue:
        """Return the collector of an environment and a sampling.

        All who need one that is not open wait for the same opening, and for as many openings at once as there are:
        an endpoint that is down costs one outage, not one for every row.
        """
        key = encode([name, sampling])
        if key in self._tables and not self._tables[key].broken:
            return self._tables[key]
        if key not in self._openings:
            opening = asyncio.create_task(self._replace_collector(key, name, sampling), name="opening")
            self._openings[key] = opening
            opening.add_done_callback(lambda done: self._end_opening(key, done))
        return await asyncio.shield(self._openings[key])  # a caller that gives up does not end it for the others

    def _end_opening(self, key: bytes, opening: asyncio.Task[_CollectorQueue]) -> None:
        del self._openings[key]
        if not opening.cancelled():
            opening.exception()  # if no caller is left, asyncio would report it as never retrieved

    async def _replace_collector(self, key: bytes, name: str, sampling: Sampling) -> _CollectorQueue:
        if key in self._tables:
            await self._tables.pop(key).close()  # an outage ends with those who waited through it
        queue = _CollectorQueue(self._make_collector(self._entries[name], sampling))
        self._tables[key] = await self._open_collector(queue)
        return queue

    async def _open_collector(self, queue: _CollectorQueue) -> _CollectorQueue:
        """Open a collector and bring it up to date, because opening takes a while."""
        await queue.open()
        if self._closed:
            await queue.close()
            raise Stopped(CLOSED_MESSAGE)
        queue.collector.resume(self._version)
        if self._paused:
            await queue.collector.pause()
        return queue

    def _make_collector(self, entry: Entry, sampling: Sampling) -> Collector:
        attempts: dict[str, JSON] = dict(self._attempts)
        return Collector(
            make_environment(entry),
            self._model,
            model_name=self._model_name,
            seed=self._seed,
            sampling=merge_sampling(sampling, entry.sampling),
            limits=merge_limits(
                Limits(max_response_tokens=sampling.max_tokens if self._limits_rows else None), entry.limits
            ),
            tool_format=entry.tool_format or "auto",
            continue_tokens=self._continues,
            on_failure="mask",
            concurrency=self._concurrency,
            attempts=attempts,
            outage_s=self._outage_s,
        )


class _CollectorQueue:
    """A Collector whose tasks come from a queue, and whose rollouts go to the callers that wait for them."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self._tasks: asyncio.Queue[Task] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[Rollout]] = {}
        self.broken: BaseException | None = None

    async def open(self) -> None:
        await self.collector.__aenter__()
        self._serving = asyncio.create_task(self._serve(), name="task runner")

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        await self.collector.__aexit__(None, None, None)

    async def run_task(self, task: Task) -> Rollout:
        if self.broken is not None:
            raise self.broken
        own = Task.from_line(task.line())  # a copy with an identity of its own, by which rollouts are told apart
        future: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        self._waiting[id(own)] = future
        self._tasks.put_nowait(own)
        try:
            return await future
        finally:
            self._waiting.pop(id(own), None)

    async def _serve(self) -> None:
        """Deliver each rollout by the identity of its task; what ends the stream ends every wait."""
        try:
            async for group in self.collector.groups(self._take_tasks()):
                future = self._waiting.get(id(group.task))
                if future is not None and not future.done():
                    future.set_result(group.rollouts[0])
        except asyncio.CancelledError:
            self._fail(Stopped(CLOSED_MESSAGE))
            raise
        except Exception as error:  # noqa: BLE001 - it is raised to every waiting caller
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.broken = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    async def _take_tasks(self) -> AsyncIterator[Task]:
        while True:
            yield await self._tasks.get()
