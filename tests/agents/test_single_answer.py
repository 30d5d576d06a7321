"""One question, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rollbook.agents.agent import SingleAnswer
from rollbook.core import JSON, Message, Rollout, Task, Turn
from rollbook.environments.session import StatelessSession
from rollbook.models import Completion


def test_it_asks_once_and_leaves_the_task_alone() -> None:
    task = Task(id="a", prompt="q")
    rollout = Rollout(task=task, sample=0, seed=0, messages=task.messages)
    prompts: list[Sequence[Message]] = []

    async def ask(
        messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        prompts.append(messages)
        return Completion(Message("assistant", "yes"), Turn(completion_tokens=1))

    asyncio.run(SingleAnswer().play(rollout, ask, StatelessSession()))
    assert prompts == [[Message("user", "q")]]
    assert (rollout.text, len(rollout.turns)) == ("yes", 1)
    assert task.messages == [Message("user", "q")]
