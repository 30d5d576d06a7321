"""The Collector: the same worker held open, for trainers. Complete groups stream out while others are in flight."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from rollbook.agents.agent import Agent
from rollbook.book.book import Book, Draft
from rollbook.book.journal import Mark
from rollbook.collect.answering import model_for
from rollbook.collect.concurrency import concurrency
from rollbook.collect.gate import Gate
from rollbook.collect.group import Group, Groups
from rollbook.collect.job import Desk
from rollbook.collect.judging import check_judge, resolve_judge, sitting, with_judge
from rollbook.collect.member import found, name_of
from rollbook.collect.planning import manifest, tool_format_of
from rollbook.collect.player import Player
from rollbook.collect.policy import Counts, EqualRewards, OnFailure, Policy
from rollbook.collect.request import Request
from rollbook.collect.shift import Shift
from rollbook.collect.stream import BookDesk, MemoryDesk
from rollbook.collect.work import stages
from rollbook.collect.worker import Worker
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Sampling, Settings, ToolFormat
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.environments.registry import Loaded
from rollbook.environments.snapshot import snapshot
from rollbook.errors import Shortfall, Stopped, UsageError
from rollbook.models.target import open_model

AUTO_WINDOW = 256
DRAWN_FOR_ONE = 4
"""How many groups are drawn at most for one that is wanted."""


class Collector:
    """Collects groups of rollouts for a trainer.

    `book=None` keeps nothing on disk; a path writes every rollout into a new book before its group is handed out.
    `on_failure`, `equal_rewards` and `max_staleness` say which groups are handed out (see `collect.policy.Policy`); by
    default every group, complete, or a Shortfall. `counts` tells what became of each. At most `window` groups are begun
    or waiting; what is not taken holds the rest back.
    """

    def __init__(
        self,
        env: str | Environment,
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
        from rollbook.collect.run import settings_of

        if across_versions not in ("allow", "restart"):
            raise UsageError(f"across_versions={across_versions!r}: allow or restart")
        if window is not None and window < 1:
            raise UsageError(f"window={window}: give a number of groups from 1 on")
        self._policy = Policy(on_failure, equal_rewards, max_staleness)
        if equal_rewards == "drop" and samples < 2:
            raise UsageError(f"equal_rewards='drop', samples={samples}: one reward is always equal; give samples >= 2")
        self.counts = Counts()
        self._ages: dict[str | None, int] = {}
        self._request = Request(
            env=env,
            model=[model] if isinstance(model, str) else list(model),
            model_name=model_name,
            samples=samples,
            out=str(book or ""),
            seed=seed,
            sampling=sampling,
            limits=limits,
            settings=settings_of(Settings(), settings),
            tool_format=tool_format,
            continue_tokens=continue_tokens,
            judge=[judge] if isinstance(judge, str) else list(judge),
            judge_name=judge_name,
        )
        self._agent = agent
        self._book_path = Path(book) if book else None
        self._restart = across_versions == "restart"
        self._window = window
        self._used: dict[str, int] = {}
        self._stack = AsyncExitStack()
        self._streams: set[Worker] = set()
        self._works: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def __aenter__(self) -> Collector:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        for worker in self._streams:
            worker.stop()
        await asyncio.gather(*self._works, return_exceptions=True)
        await self._stack.aclose()

    async def _open(self) -> None:
        request = self._request
        self._loaded = found(request.env)
        spec, urls = model_for([self._loaded], request.model, request.model_name)
        judge, judge_urls = resolve_judge(request.judge, request.judge_name)
        attempts = self._policy.budgets(request.settings.attempts)
        settings = msgspec.structs.replace(request.settings, urls=urls, attempts=attempts)
        self._settings = with_judge(settings, judge_urls)
        check_judge(self._loaded, judge is not None)
        self._court = await self._stack.enter_async_context(sitting(judge, self._settings))
        self._gate = Gate(open_model(spec, self._settings))
        self._stack.push_async_callback(self._gate.close)
        await self._gate.open()
        self._name = name_of(self._loaded)
        folder, self._book = self._place(self._loaded)
        specs = self._book.manifest.environments if self._book else {self._name: self._spec}
        on = stages(
            specs,
            request.limits,
            run=folder,
            hosts=self._settings.hosts,
            instances={self._name: self._loaded.instance},
            court=self._court,
        )
        self._player = Player(
            self._gate,
            await self._stack.enter_async_context(on),
            self._agent,
            request.sampling,
            request.limits,
            request.seed,
            restart_across_versions=self._restart,
            tool_format=tool_format_of(request, spec),
            budgets=self._settings.attempts,
            continue_tokens=request.continue_tokens,
        )

    def _place(self, loaded: Loaded) -> tuple[Path, Book | None]:
        """Where the source is pinned: the book, or a folder that is gone with the collector."""
        if self._book_path:
            with Draft(self._book_path) as draft:
                self._spec = snapshot(loaded, draft.folder / "source")
                draft.add_tasks((), self._name)
                judge = self._court.spec if self._court else None
                made = manifest(self._request, {self._name: self._spec}, self._gate.spec, judge)
                book = draft.finish(made, [])
            self._round = book.open_round(self._settings)
            return book.path, book
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-")))
        self._spec = snapshot(loaded, folder / "source")
        return folder, None

    async def groups(
        self,
        tasks: Iterable[Task] | AsyncIterable[Task] | None = None,
        *,
        wanted: int | None = None,
        at_most: int | None = None,
    ) -> AsyncIterator[Group]:
        """Groups as they finish; `tasks` defaults to the environment's own, once. Closing stops the work.

        With `wanted` it ends after so many were handed out, and draws more tasks for those that the policy drops, up to
        `at_most` in all (four times as many unless given); Shortfall if they do not suffice.
        """
        for name, value in (("wanted", wanted), ("at_most", at_most)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: give a number of groups from 1 on")
        given, drawn, scored = 0, self.counts.drawn, 0
        source = self._loaded_tasks() if tasks is None else tasks
        stream = self._stream(source, at_most if at_most or wanted is None else DRAWN_FOR_ONE * wanted)
        async with aclosing(stream):
            async for group in stream:
                if self._policy.passes(group, self._staleness(group), self.counts):
                    yield group
                    given, scored = given + 1, scored + len(group.scored)
                if given == wanted:
                    return
        if wanted is not None:
            raise self._too_few(wanted, given, self.counts.drawn - drawn, scored)

    def _loaded_tasks(self) -> Iterable[Task]:
        self._check_open()
        return self._loaded.instance.tasks()

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("the collector is not open: use it in `async with`")

    def _too_few(self, wanted: int, given: int, drawn: int, scored: int) -> Shortfall:
        samples = self._request.samples
        dropped = {
            name: value for name, value in msgspec.structs.asdict(self.counts).items() if name.startswith("dropped")
        }
        cause = f"{wanted} groups were wanted and {given} of {drawn} drawn were fit; in all {dropped}"
        return Shortfall(requested=wanted * samples, scored=scored, failed={}, cause=cause)

    async def _stream(
        self, tasks: Iterable[Task] | AsyncIterable[Task], at_most: int | None
    ) -> AsyncGenerator[Group, None]:
        """Every group that ends, whatever it came to."""
        self._check_open()
        if self._book is not None and self._streams:
            raise UsageError("a collector with a book has one stream of groups at a time: close the other one first")
        limiter = concurrency(self._settings.concurrency, lambda _: None)
        groups = Groups(self._request.samples, self._window or self._default_window())
        desk, shift = self._desk(self._drawn(named(tasks, self._name), at_most), groups)
        worker = Worker(desk, self._player, limiter, 1, self._settings.attempts)
        self._streams.add(worker)
        work = asyncio.create_task(self._work(worker, shift, groups), name="collector")
        self._works.add(work)
        try:
            while (group := await groups.take()) is not None:
                yield group
            await work
        finally:
            worker.stop()
            await asyncio.gather(work, return_exceptions=True)
            self._streams.discard(worker)
            self._works.discard(work)

    async def _drawn(self, tasks: AsyncIterator[Task], at_most: int | None) -> AsyncIterator[Task]:
        """The tasks, counted, and no more than may be drawn."""
        drawn = 0
        while at_most is None or drawn < at_most:
            task = await anext(tasks, None)
            if task is None:
                return
            drawn += 1
            self.counts.drawn += 1
            yield task

    def _staleness(self, group: Group) -> int:
        """How many versions the oldest turn of a group is behind the present one; 0 before weights ever changed."""
        now = self._ages.get(self._gate.version, 0)
        turns = (turn for rollout in group.scored for turn in rollout.turns)
        return max((now - self._ages.get(turn.model_version, 0) for turn in turns), default=0)

    def _default_window(self) -> int:
        """Twice what is in flight at once; where that is still to be found out, twice what most endpoints bear."""
        wanted = self._settings.concurrency
        at_once = wanted if isinstance(wanted, int) else AUTO_WINDOW
        return max(2, math.ceil(2 * at_once / self._request.samples))

    def _desk(self, source: AsyncIterator[Task], groups: Groups) -> tuple[Desk, Shift | None]:
        if self._book is None:
            return MemoryDesk(source, self._request.samples, groups, self._used), None

        def durable(mark: Mark) -> None:
            if mark.final:
                groups.add(mark.rollout)

        shift = Shift(self._book, self._round, listener=durable)
        return BookDesk(source, self._request.samples, groups, self._book, shift, self._name), shift

    async def _work(self, worker: Worker, shift: Shift | None, groups: Groups) -> None:
        try:
            await (worker.run() if shift is None else _at_book(worker, shift))
        finally:
            groups.end()
        if shift and shift.trouble:
            raise shift.trouble
        if worker.ended_early:
            raise Stopped("the collector was closed while groups were being collected")

    async def pause(self) -> None:
        """Before a weight update: no new model call begins, those under way are waited for."""
        await self._gate.pause(self._settings.call_s)

    def resume(self, model_version: str | None = None) -> None:
        """After it: calls go on, and are stamped with the new version."""
        if model_version is not None:
            if model_version != self._gate.version:  # one that comes back makes those between it older
                self._ages[model_version] = max(self._ages.values(), default=0) + 1
            self._gate.version = model_version
        self._gate.resume()


async def _at_book(worker: Worker, shift: Shift) -> None:
    """Join, work, leave."""
    await shift.join()
    try:
        await worker.run()
    finally:
        await shift.leave()


async def named(tasks: Iterable[Task] | AsyncIterable[Task], env: str) -> AsyncIterator[Task]:
    """Tasks from either kind of iterable, each under its environment's name."""
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            yield of_env(task, env)
        return
    for task in tasks:
        yield of_env(task, env)


def of_env(task: Task, env: str) -> Task:
    """The task under its environment's name; what is no task is refused."""
    if not isinstance(task, Task):
        raise UsageError(f"groups() was given a {type(task).__name__}, not a Task")
    task.env = env
    return task
