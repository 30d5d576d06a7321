"""The tool loop: the model calls tools until it has an answer."""

from __future__ import annotations

from rollbook.agents.agent import Ask, World
from rollbook.agents.format import Format
from rollbook.agents.single import SingleAnswer
from rollbook.core.json import JSON
from rollbook.core.message import Message, ToolCall
from rollbook.core.rollout import Rollout
from rollbook.environments.toolbox import Misuse, read_arguments
from rollbook.errors import LimitReached

MOST_CALLS = 64
"""Calls of one message that are carried out; the others are answered with this bound."""


class ToolLoop:
    """Asks, carries out the calls of the answer in their order, and asks again; an answer without calls is the last.

    What the model does wrong (an unknown tool, broken arguments) is told to it and is no failure. `stop_repeats` ends
    the conversation when the same calls come so many times running. Where a task has no tools, one answer is asked for.
    """

    def __init__(self, form: Format, stop_repeats: int | None = None) -> None:
        self._form, self._stop_repeats = form, stop_repeats

    async def play(self, rollout: Rollout, ask: Ask, world: World) -> None:
        """Until the model answers without calling a tool, or a limit ends it."""
        if not world.tools:
            await SingleAnswer().play(rollout, ask, world)
            return
        before: list[JSON] = []
        repeats = 0
        while calls := await self._turn(rollout, ask, world):
            asked = [meant(call) for call in calls]
            repeats = repeats + 1 if asked == before else 1
            before = asked
            if self._stop_repeats and repeats >= self._stop_repeats:
                raise LimitReached("repeats")
            for number, call in enumerate(calls):
                said = await self._answer(call, number, world)
                rollout.messages = [*rollout.messages, Message("tool", said, tool_call_id=call.id)]

    async def _turn(self, rollout: Rollout, ask: Ask, world: World) -> list[ToolCall]:
        completion = await self._form.ask(ask, rollout.messages, world.tools)
        rollout.messages = [*rollout.messages, completion.message]
        rollout.turns.append(completion.turn)
        return completion.message.tool_calls or []

    async def _answer(self, call: ToolCall, number: int, world: World) -> str:
        name = call.function.name
        known = [tool["function"]["name"] for tool in world.tools]
        if number >= MOST_CALLS:
            return f"Error: not carried out; at most {MOST_CALLS} calls of one message are"
        if not name:
            return self._form.misread(call.function.arguments)
        if name not in known:
            return f"Error: there is no tool called {name[:64]!r}; there are {', '.join(known)}"
        return await world.use(name, call.function.arguments)


def meant(call: ToolCall) -> JSON:
    """A call without what does not matter: the order of its arguments, and the spaces between them."""
    try:
        return [call.function.name, read_arguments(call.function.arguments, "they")]
    except Misuse:
        return [call.function.name, call.function.arguments]
