"""The simplest meeting: one question, one answer."""

from __future__ import annotations

from rollbook.agents.agent import Ask, World
from rollbook.core.rollout import Rollout


class SingleAnswer:
    """Asks once and keeps what comes."""

    async def play(self, rollout: Rollout, ask: Ask, world: World) -> None:
        """One turn."""
        completion = await ask(rollout.messages)
        rollout.messages = [*rollout.messages, completion.message]
        rollout.turns.append(completion.turn)
