"""The Collector: the same worker held open, for trainers. Complete groups stream out while others are in flight.

Tasks come one by one; their rollouts go to memory or to a book that grows with them. `PausableModel` lets no call
through while weights change, so that no call sees half of two versions.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Literal, Unpack

import msgspec

from rollbook.agents import Agent
from rollbook.book import Book, BookDraft, JournalEntry, KeyHistory, read_files_into, store_task_media
from rollbook.core import JSON, Group, Limits, Message, Rollout, Sampling, Settings, Task, ToolFormat, has_own_data
from rollbook.engine.blends import environment_name, load_environment
from rollbook.engine.book_worker import BookJobSource, open_environments
from rollbook.engine.concurrency import make_limiter
from rollbook.engine.groups import EqualRewards, GroupBuffer, GroupCounts, GroupPolicy, OnFailure
from rollbook.engine.planning import choose_tool_format, find_media_roots, make_manifest, resolve_run_model
from rollbook.engine.request import Request, as_list, update_settings
from rollbook.engine.rollout_runner import RolloutRunner
from rollbook.engine.worker import JobSource, RolloutJob, Worker
from rollbook.environments import Environment, LoadedEnvironment, open_roles, resolve_roles_for, write_snapshot
from rollbook.errors import Shortfall, Stopped, UsageError
from rollbook.models import AnsweredCall, Completion, Model, ModelCall, open_model, require_continuing


class PausableModel:
    """A model whose calls can be paused."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.spec = model.spec
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = asyncio.Event()
        self._running.set()

    @property
    def tokens(self) -> bool:
        """Whether the model reports token ids."""
        return bool(getattr(self._model, "tokens", False))

    @property
    def wire_names(self) -> Mapping[str, str]:
        """The model's own."""
        return self._model.wire_names

    @property
    def version(self) -> str | None:
        """The version that calls are stamped with."""
        return self._model.version

    @version.setter
    def version(self, version: str | None) -> None:
        self._model.version = version

    async def open(self) -> None:
        """Open the model."""
        await self._model.open()
        self.spec = self._model.spec

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()

    def stop_waiting(self) -> None:
        """Let calls that wait for a server give up at once."""
        self._model.stop_waiting()

    def describe_outage(self) -> str:
        """Return how long no server has answered, and why; empty while one does."""
        return self._model.describe_outage()

    async def pause(self, within_s: float) -> None:
        """Start no new call, and wait for calls in progress."""
        self._running.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            raise Stopped(f"{self._calls} model calls did not end within {within_s:g} s of the pause") from None

    def resume(self) -> None:
        """Allow calls again."""
        self._running.set()

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]) -> Completion:
        """Complete once calls are allowed."""
        return await self._call_when_running(lambda: self._model.complete(messages, sampling, **call))

    async def complete_from(
        self, previous: AnsweredCall, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]
    ) -> Completion:
        """Continue the tokens of an earlier call once calls are allowed."""
        model = require_continuing(self._model)
        return await self._call_when_running(lambda: model.complete_from(previous, messages, sampling, **call))

    async def _call_when_running(self, call: Callable[[], Awaitable[Completion]]) -> Completion:
        while not self._running.is_set():
            await self._running.wait()
        self._calls += 1
        self._idle.clear()
        try:
            return await call()
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()


TASKS_PER_BLOCK = 64


class MemoryJobSource:
    """Makes `samples` jobs of every task; keeps nothing once its group is taken."""

    def __init__(
        self, tasks: AsyncIterator[Task], samples: int, groups: GroupBuffer, next_samples: dict[str, int]
    ) -> None:
        self._tasks, self._samples, self._groups, self._next_samples = tasks, samples, groups, next_samples
        self._jobs: deque[RolloutJob] = deque()
        self._draw_lock = asyncio.Lock()
        self._over = False

    async def next(self) -> RolloutJob | None:
        """Return the next sample of the current task, or the first of the next one."""
        while True:
            if self._jobs:
                return self._jobs.popleft()
            async with self._draw_lock:
                if self._jobs:
                    continue
                if self._over or not await self._draw_task():
                    return None

    async def _draw_task(self) -> bool:
        await self._groups.wait_for_room()
        task = await anext(self._tasks, None)
        if task is None:
            self._over = True
            return False
        first = self._next_samples.get(task.id, 0)
        self._next_samples[task.id] = first + self._samples
        self._groups.begin()
        self._jobs.extend(RolloutJob(task, first + i, KeyHistory()) for i in range(self._samples))
        return True

    async def mark(self, job: RolloutJob, rollout: Rollout, final: bool) -> None:
        """Add a finished rollout to its group."""
        if final:
            self._groups.add(rollout)

    def idle(self) -> None:
        """Do nothing: results are not written in groups here."""


class StreamingBookJobSource:
    """Writes tasks into a book in blocks as they come, and hands out its keys as for any chunk.

    A group gets an attempt once it is durable.
    """

    def __init__(
        self,
        tasks: AsyncIterator[Task],
        samples: int,
        groups: GroupBuffer,
        book: Book,
        book_jobs: BookJobSource,
        env: str,
    ) -> None:
        self._tasks, self._samples, self._groups = tasks, samples, groups
        self._book, self._book_jobs, self._env = book, book_jobs, env
        self.mark, self.idle = book_jobs.mark, book_jobs.idle
        self._draw_lock = asyncio.Lock()
        self._over = False

    async def next(self) -> RolloutJob | None:
        """Return a key of the book; write more tasks into it when its keys run out."""
        while True:
            job = await self._book_jobs.take_ready()
            if job is not None:
                return job
            async with self._draw_lock:
                job = await self._book_jobs.take_ready()
                if job is None and not await self._draw_tasks():
                    return None
            if job is not None:
                return job

    async def _draw_tasks(self) -> bool:
        if self._over:
            return False
        await self._groups.wait_for_room()
        block: list[Task] = []
        while len(block) < min(TASKS_PER_BLOCK, self._groups.free_slots) and not self._over:
            task = await anext(self._tasks, None)
            if task is None:
                self._over = True
            else:
                block.append(task)
        if not block:
            return False
        self._groups.begin(len(block))
        await asyncio.to_thread(self._book.request_samples, block, self._env, self._samples)
        while await self._book_jobs.claim_chunk():
            continue
        return True


AUTO_WINDOW = 256
MAX_DRAWN_PER_GROUP = 4
"""How many groups are drawn at most for each one that is wanted."""


class Collector:
    """Collects groups of rollouts for a trainer.

    `book=None` keeps nothing on disk; a path writes every rollout into a new book before its group is yielded.
    `on_failure`, `equal_rewards` and `max_staleness` decide which groups are yielded (see `GroupPolicy`); by default
    every group, complete, or a Shortfall. `counts` counts them all. At most `window` groups are in progress or ready:
    no more start until some are taken.
    """

    def __init__(
        self,
        env: str | Environment | type[Environment],
        model: str | list[str] = (),  # type: ignore[assignment]
        *,
        samples: int = 1,
        model_name: str = "",
        seed: int = 0,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008 - frozen
        agent: Agent | None = None,
        tool_format: Literal["auto"] | ToolFormat = "auto",
        continue_tokens: bool = False,
        judge: str | list[str] = (),  # type: ignore[assignment]
        judge_name: str = "",
        book: str | Path | None = None,
        across_versions: Literal["allow", "restart"] = "allow",
        window: int | None = None,
        on_failure: OnFailure = "raise",
        equal_rewards: EqualRewards = "keep",
        max_staleness: int | None = None,
        **settings: JSON,
    ) -> None:
        if across_versions not in ("allow", "restart"):
            raise UsageError(f"across_versions={across_versions!r}: allow or restart")
        if window is not None and window < 1:
            raise UsageError(f"window={window}: give a number of groups from 1 on")
        self._policy = GroupPolicy(on_failure, equal_rewards, max_staleness)
        if equal_rewards == "drop" and samples < 2:
            raise UsageError(f"equal_rewards='drop', samples={samples}: one reward is always equal; give samples >= 2")
        self.counts = GroupCounts()
        self._version_ages: dict[str | None, int] = {}
        self._request = Request(
            env=env,
            model=as_list(model),
            model_name=model_name,
            samples=samples,
            out=str(book or ""),
            seed=seed,
            sampling=sampling,
            limits=limits,
            settings=update_settings(Settings(), settings),
            tool_format=tool_format,
            continue_tokens=continue_tokens,
            judge=as_list(judge),
            judge_name=judge_name,
        )
        self._agent = agent
        self._book_path = Path(book) if book else None
        self._restart = across_versions == "restart"
        self._window = window
        self._next_samples: dict[str, int] = {}
        self._stack = AsyncExitStack()
        self._streams: set[Worker] = set()
        self._work_tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def __aenter__(self) -> Collector:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        for worker in self._streams:
            worker.stop()
        await asyncio.gather(*self._work_tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _open(self) -> None:
        request = self._request
        self._loaded = load_environment(request.env)
        spec, settings = resolve_run_model([self._loaded], request)
        attempts = self._policy.attempt_budgets(request.settings.attempts)
        settings = msgspec.structs.replace(settings, attempts=attempts, judge_urls=request.judge)
        meaning, self._settings = resolve_roles_for(self._loaded, settings, request.judge_name)
        self._roles = await self._stack.enter_async_context(open_roles(meaning, self._settings))
        self._model = PausableModel(open_model(spec, self._settings))
        self._stack.push_async_callback(self._model.close)
        await self._model.open()
        self._name = environment_name(self._loaded)
        folder, self._book = self._prepare_folder(self._loaded)
        specs = self._book.manifest.environments if self._book else {self._name: self._spec}
        on = open_environments(
            specs,
            request.limits,
            run=folder,
            hosts=self._settings.hosts,
            instances={self._name: self._loaded.instance},
            roles=self._roles,
            outage_s=self._settings.outage_s,
        )
        self._runner = RolloutRunner(
            self._model,
            await self._stack.enter_async_context(on),
            self._agent,
            request.sampling,
            request.limits,
            request.seed,
            restart_across_versions=self._restart,
            tool_format=choose_tool_format(request, spec),
            budgets=self._settings.attempts,
            continue_tokens=request.continue_tokens,
            media=self._book.media if self._book else None,
        )

    def _prepare_folder(self, loaded: LoadedEnvironment) -> tuple[Path, Book | None]:
        """Write the environment's source into the book, or into a folder that is deleted with the collector."""
        if self._book_path:
            with BookDraft(self._book_path) as draft:
                self._spec = write_snapshot(loaded, draft.folder / "source")
                draft.add_tasks((), self._name)
                specs, meaning = {self._name: self._spec}, self._roles.meaning
                manifest = make_manifest(self._request, specs, self._model.spec, meaning)
                book = draft.finish(manifest, [])
            self._round = book.open_round(self._settings)
            return book.path, book
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-")))
        self._spec = write_snapshot(loaded, folder / "source")
        return folder, None

    async def groups(
        self,
        tasks: Iterable[Task] | AsyncIterable[Task] | None = None,
        *,
        wanted: int | None = None,
        at_most: int | None = None,
    ) -> AsyncIterator[Group]:
        """Yield groups as they finish; `tasks` defaults to the environment's own, once. Closing stops the work.

        With `wanted` it ends after that many groups, and draws more tasks for those that the policy drops, up to
        `at_most` in all (by default four times as many); Shortfall if they are not enough.
        """
        for name, value in (("wanted", wanted), ("at_most", at_most)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: give a number of groups from 1 on")
        given, drawn, scored = 0, self.counts.drawn, 0
        if tasks is None:
            self._check_open()
            tasks = self._loaded.instance.tasks()
        stream = self._stream(tasks, at_most if at_most or wanted is None else MAX_DRAWN_PER_GROUP * wanted)
        async with aclosing(stream):
            async for group in stream:
                if self._policy.passes(group, self._staleness(group), self.counts):
                    yield group
                    given, scored = given + 1, scored + len(group.scored)
                if given == wanted:
                    return
        if wanted is not None:
            raise self._too_few_groups(wanted, given, self.counts.drawn - drawn, scored)

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("the collector is not open: use it in `async with`")

    def _too_few_groups(self, wanted: int, given: int, drawn: int, scored: int) -> Shortfall:
        samples = self._request.samples
        dropped = {
            name: value for name, value in msgspec.structs.asdict(self.counts).items() if name.startswith("dropped")
        }
        cause = f"{wanted} groups were requested, and {given} of {drawn} collected were usable; in all {dropped}"
        return Shortfall(requested=wanted * samples, scored=scored, failed={}, cause=cause)

    async def _stream(
        self, tasks: Iterable[Task] | AsyncIterable[Task], at_most: int | None
    ) -> AsyncGenerator[Group, None]:
        """Yield every group that ends, scored or not."""
        self._check_open()
        if self._book is not None and self._streams:
            raise UsageError("a collector with a book has one stream of groups at a time: close the other one first")
        limiter = make_limiter(self._settings.concurrency, lambda _: None)
        groups = GroupBuffer(self._request.samples, self._window or self._default_window())
        jobs, book_jobs = self._make_job_source(
            self._draw_tasks(assign_environments(tasks, self._name), at_most), groups
        )
        worker = Worker(jobs, self._runner, limiter, 1, self._settings.attempts)
        self._streams.add(worker)
        work = asyncio.create_task(self._work(worker, book_jobs, groups), name="collector")
        self._work_tasks.add(work)
        try:
            while (group := await groups.take()) is not None:
                yield group
            await work
        finally:
            worker.stop()
            await asyncio.gather(work, return_exceptions=True)
            self._streams.discard(worker)
            self._work_tasks.discard(work)

    async def _draw_tasks(self, tasks: AsyncIterator[Task], at_most: int | None) -> AsyncIterator[Task]:
        """Yield at most `at_most` tasks, and count them."""
        drawn = 0
        while at_most is None or drawn < at_most:
            task = await anext(tasks, None)
            if task is None:
                return
            drawn += 1
            self.counts.drawn += 1
            if has_own_data(task.messages):
                await asyncio.to_thread(self._store_media, task)
            yield task

    def _store_media(self, task: Task) -> None:
        """Store the images and sounds of a task in the book; without a book, read its files into its messages."""
        roots = find_media_roots(self._loaded)
        if self._book is not None:
            store_task_media(task, self._book.media, roots)
        else:
            task.messages = read_files_into(task.messages, roots)

    def _staleness(self, group: Group) -> int:
        """Return how many versions the oldest turn of a group is behind; 0 before weights ever changed."""
        now = self._version_ages.get(self._model.version, 0)
        turns = (turn for rollout in group.scored for turn in rollout.turns)
        return max((now - self._version_ages.get(turn.model_version, 0) for turn in turns), default=0)

    def _default_window(self) -> int:
        """Return twice the concurrency; where that is adaptive, twice what most endpoints can handle."""
        wanted = self._settings.concurrency
        at_once = wanted if isinstance(wanted, int) else AUTO_WINDOW
        return max(2, math.ceil(2 * at_once / self._request.samples))

    def _make_job_source(
        self, source: AsyncIterator[Task], groups: GroupBuffer
    ) -> tuple[JobSource, BookJobSource | None]:
        if self._book is None:
            return MemoryJobSource(source, self._request.samples, groups, self._next_samples), None

        def on_durable(mark: JournalEntry) -> None:
            if mark.final:
                groups.add(mark.rollout)

        jobs = BookJobSource(self._book, self._round, on_mark=on_durable, model=self._model)
        return StreamingBookJobSource(source, self._request.samples, groups, self._book, jobs, self._name), jobs

    async def _work(self, worker: Worker, book_jobs: BookJobSource | None, groups: GroupBuffer) -> None:
        try:
            await (book_jobs.run_worker(worker) if book_jobs else worker.run())
        finally:
            groups.end()
        if worker.ended_early:
            raise Stopped("the collector was closed while groups were being collected")

    async def pause(self) -> None:
        """Before a weight update: start no new model call, and wait for calls in progress."""
        await self._model.pause(self._settings.call_s)

    def resume(self, model_version: str | None = None) -> None:
        """After a weight update: allow calls again, recorded with the new version."""
        if model_version is not None:
            if model_version != self._model.version:  # a version that comes back makes those in between older
                self._version_ages[model_version] = max(self._version_ages.values(), default=0) + 1
            self._model.version = model_version
        self._model.resume()


async def assign_environments(tasks: Iterable[Task] | AsyncIterable[Task], env: str) -> AsyncIterator[Task]:
    """Yield tasks from either kind of iterable, each with its environment's name."""
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            yield assign_environment(task, env)
        return
    for task in tasks:
        yield assign_environment(task, env)


def assign_environment(task: Task, env: str) -> Task:
    """Set a task's environment; refuse what is not a task."""
    if not isinstance(task, Task):
        raise UsageError(f"groups() was given a {type(task).__name__}, not a Task")
    task.env = env
    return task
