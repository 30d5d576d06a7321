"""A trial: rollouts whose answers are given instead of asked for, through the same player, stages and limits."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rollbook.book.ledger import Past
from rollbook.collect.job import Job
from rollbook.collect.member import name_of
from rollbook.collect.planning import given
from rollbook.collect.player import Player
from rollbook.collect.work import stages
from rollbook.core.json import JSON, encode
from rollbook.core.manifest import EnvironmentSpec, Limits, ModelSpec, Sampling
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task, TaskLine
from rollbook.core.turn import Turn
from rollbook.environments.court import Court
from rollbook.environments.registry import Loaded
from rollbook.environments.snapshot import snapshot
from rollbook.environments.stage import Stage
from rollbook.errors import LimitReached, UsageError
from rollbook.models.model import Completion


class Given:
    """A model that says what it was given, turn by turn, and then has nothing more to say."""

    def __init__(self, task: Task, texts: Sequence[str]) -> None:
        self.spec = ModelSpec("given", "given")
        self.version: str | None = None
        self._shown = _answers(task.messages)
        self._texts = texts

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, *, seed: int, rollout: str, tools: Sequence[JSON] = ()
    ) -> Completion:
        """The next text; after the last one the conversation is over, as if no more turns were allowed."""
        turn = _answers(messages) - self._shown
        if turn >= len(self._texts):
            raise LimitReached("max_turns")
        await asyncio.sleep(0)
        return Completion(Message("assistant", self._texts[turn]), Turn())


def _answers(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)


class Trial:
    """One environment on its stage, ready for given answers. `folder` holds its source, `spec` what it is."""

    def __init__(self, name: str, spec: EnvironmentSpec, folder: Path, stage: Stage, limits: Limits) -> None:
        self.name, self.spec, self.folder, self.limits = name, spec, folder, limits
        self._stage = stage

    async def play(self, task: Task, said: str | Sequence[str]) -> Rollout:
        """The rollout in which the model says this: scored, or failed as one of a run would have."""
        texts = [said] if isinstance(said, str) else list(said)
        stages = {self.name: self._stage}
        player = Player(Given(task, texts), stages, None, Sampling(), self.limits, 0, tool_format="text")
        rollout, _ = await player.play(Job(as_kept(task, self.name), 0, Past()), 1)
        return rollout

    async def tools(self, task: Task) -> Sequence[JSON]:
        """What tools a rollout of this task is shown; RolloutFailed where it could not begin."""
        if not self.spec.offers:
            return self.spec.tools
        seat = await self._stage.seat(as_kept(task, self.name), task.id)
        try:
            return seat.tools
        finally:
            await self._stage.leave(seat)


@asynccontextmanager
async def trial(loaded: Loaded, limits: Limits, *, hosts: int = 1, court: Court | None = None) -> AsyncIterator[Trial]:
    """A trial of an environment, with processes of its own for as long as the context is."""
    name = name_of(loaded)
    if not loaded.cls.needs_model:
        raise UsageError(f"{name} plays its rollouts itself, so no given answer can be scored there; use rollbook run")
    with tempfile.TemporaryDirectory(prefix="rollbook-") as path:
        folder = Path(path)
        spec = snapshot(loaded, folder / "source")
        instances = {} if importable(loaded) else {name: loaded.instance}
        async with stages({name: spec}, limits, run=folder, hosts=hosts, instances=instances, court=court) as on:
            yield Trial(name, spec, folder, on[name], limits)


def importable(loaded: Loaded) -> bool:
    """Whether another process could make it: a class of a notebook exists in this one alone."""
    module, _, name = loaded.spec.target.partition(":")
    return "<locals>" not in name and (loaded.path is not None or bool(getattr(sys.modules[module], "__file__", None)))


def tasks_of(loaded: Loaded) -> Iterator[Task]:
    """The environment's own tasks; what is none is its mistake, told in one line."""
    for task in given(loaded):
        if not isinstance(task, Task):
            raise UsageError(f"{name_of(loaded)}: tasks() gave a {type(task).__name__}, not a Task")
        yield task


def as_kept(task: Task, env: str) -> Task:
    """The task as a run would read it back from tasks.jsonl."""
    try:
        line = msgspec.json.decode(encode(task.line()), type=TaskLine)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{env}: task {task.id!r} does not fit JSON: {error}") from None
    kept = Task.from_line(line)
    kept.env = env
    return kept
