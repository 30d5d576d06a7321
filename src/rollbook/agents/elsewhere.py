"""A rollout that its environment plays itself: with the model of the run, or elsewhere with one of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollbook.agents.agent import Ask, World
from rollbook.agents.format import Format
from rollbook.core.json import JSON
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.environments.seat import LoopSeat
from rollbook.models.model import Completion


class Elsewhere:
    """Hands the rollout over, with the means to ask in the run's tool format."""

    def __init__(self, form: Format) -> None:
        self._form = form

    async def play(self, rollout: Rollout, ask: Ask, world: World) -> None:
        """Until the environment has carried it to its end."""
        assert isinstance(world, LoopSeat)
        await world.play(rollout, Formed(ask, self._form))


class Formed:
    """Asks in a format: tools are offered, and calls of them read, as the run has it."""

    def __init__(self, ask: Ask, form: Format) -> None:
        self._ask, self._form, self.sampling = ask, form, ask.sampling

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """One answer."""
        return await (self._form.ask(self._ask, messages, tools) if tools else self._ask(messages, extra=extra))
