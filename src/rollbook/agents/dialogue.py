"""The dialogue: the model answers, the environment replies, until one of them has no more to say."""

from __future__ import annotations

from rollbook.agents.agent import Agent, Ask, World
from rollbook.core.rollout import Rollout


class Dialogue:
    """Plays turn after turn with an environment that speaks back; `answering` makes one answer, with tools or without.

    The environment hears the last answer that the limits allow, too: it may have to act on it.
    """

    def __init__(self, answering: Agent) -> None:
        self._answering = answering

    async def play(self, rollout: Rollout, ask: Ask, world: World) -> None:
        """Until the environment replies None, or a limit ends it."""
        while True:
            await self._answering.play(rollout, ask, world)
            said = await world.reply(rollout)
            if said is None:
                return
            rollout.messages = [*rollout.messages, said]
