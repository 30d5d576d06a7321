"""What every agent does: carry one rollout from its prompt to its last message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.models.model import Completion

Ask: TypeAlias = Callable[[Sequence[Message]], Awaitable[Completion]]
"""Ask the model once, with the rollout's own sampling and seed."""


class Agent(Protocol):
    """Plays a rollout: every answer goes into `rollout.messages` and `rollout.turns` as it comes, never later."""

    async def play(self, rollout: Rollout, ask: Ask) -> None:
        """Carry the conversation to its end; ContextFull may simply be let through."""
