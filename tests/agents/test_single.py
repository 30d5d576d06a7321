"""One question, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rollbook.agents.single import SingleAnswer
from rollbook.core.json import JSON
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.core.turn import Turn
from rollbook.environments.seat import NoSeat
from rollbook.models.model import Completion


def test_it_asks_once_and_leaves_the_task_alone() -> None:
    task = Task(id="a", prompt="q")
    rollout = Rollout(task=task, sample=0, seed=0, messages=task.messages)
    asked: list[Sequence[Message]] = []

    async def ask(
        messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        asked.append(messages)
        return Completion(Message("assistant", "yes"), Turn(completion_tokens=1))

    asyncio.run(SingleAnswer().play(rollout, ask, NoSeat()))
    assert asked == [[Message("user", "q")]]
    assert (rollout.text, len(rollout.turns)) == ("yes", 1)
    assert task.messages == [Message("user", "q")]
