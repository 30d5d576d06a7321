"""A rollout turned inside out: whoever asks has the model, and hands in what it says, turn by turn.

Everything else is as in a run: the same agent, limits, state and verifier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from rollbook.book.ledger import Past
from rollbook.collect.job import Job
from rollbook.collect.player import Player
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, ModelSpec, Sampling
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.environments.stage import Stage
from rollbook.errors import RolloutFailed
from rollbook.models.model import Completion
from rollbook.wire.gym.leases import NoSession


class Observed(msgspec.Struct, frozen=True):
    """What the environment does after the model has spoken: new messages, and the rollout once that is over."""

    messages: list[Message]
    rollout: Rollout | None = None


class Episode:
    """One rollout. It is a model to its player, which waits here for the next answer."""

    def __init__(self, stage: Stage, limits: Limits, task: Task, sample: int) -> None:
        self.spec = ModelSpec("remote", "remote")
        self.version: str | None = None
        self._shown: list[Message] = []
        self._answers: asyncio.Queue[Completion] = asyncio.Queue()
        self._asked = asyncio.Event()
        player = Player(self, {task.env: stage}, None, Sampling(), limits, 0)
        self._play = asyncio.create_task(player.play(Job(task, sample, Past()), 1), name="episode")

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Drop what is left of it; the state is closed on the way."""
        self._play.cancel()
        await asyncio.gather(self._play, return_exceptions=True)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, *, seed: int, rollout: str, tools: Sequence[JSON] = ()
    ) -> Completion:
        """The next answer that is handed in."""
        if len(messages) <= len(self._shown):  # played again from the prompt, where whoever has the model cannot follow
            raise RolloutFailed("environment_error", "environment", "the process of this state was lost")
        self._shown = list(messages)
        self._asked.set()
        return await self._answers.get()

    async def begin(self) -> None:
        """Until the first answer is wanted; an environment that does not open raises its failure."""
        await self._heard()

    async def step(self, said: Completion) -> Observed:
        """Hand in what the model says; what the environment does then."""
        if self._play.done():
            raise NoSession("this episode is over: reset for a new one")
        known = len(self._shown) + 1
        self._asked.clear()
        self._answers.put_nowait(said)
        rollout = await self._heard()
        return Observed((rollout.messages if rollout else self._shown)[known:], rollout)

    async def _heard(self) -> Rollout | None:
        """Wait until the next answer is wanted, or it is over."""
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait({asked, self._play}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if not self._play.done():
            return None
        if self._play.cancelled():
            raise NoSession("this episode was closed meanwhile: reset for a new one")
        rollout, error = self._play.result()
        if error is not None:
            raise error
        return rollout
