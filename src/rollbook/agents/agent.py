"""The interface of every agent: it drives the conversation of one rollout, and never scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rollbook.core import JSON, Message, Rollout
from rollbook.models import AskModel


class EnvironmentAccess(Protocol):
    """What an agent may do with the environment of its rollout."""

    tools: Sequence[JSON]

    async def use(self, name: str, arguments: str) -> str:
        """Call a tool with the arguments as the model wrote them; a misuse returns a message for the model."""
        ...

    async def reply(self, rollout: Rollout) -> Message | None:
        """Return the environment's reply to the model's last message; None ends the conversation."""


class Agent(Protocol):
    """Runs a rollout: every answer is added to `rollout.messages` and `rollout.turns` as it comes, never later."""

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Carry the conversation to its end."""
