"""The built-in agents: a single answer, a tool loop, a dialogue, or an environment that drives the rollout itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollbook.agents.agent import Agent, EnvironmentAccess
from rollbook.agents.tool_formats import ToolCallFormat
from rollbook.core import JSON, Message, Rollout, ToolCall
from rollbook.environments import LoopSession, ToolMisuse, read_arguments
from rollbook.errors import LimitReached
from rollbook.models import AskModel, Completion


class SingleAnswer:
    """Asks once and keeps what comes."""

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """One turn."""
        completion = await ask(rollout.messages)
        rollout.messages = [*rollout.messages, completion.message]
        rollout.turns.append(completion.turn)


MAX_CALLS = 64
"""Calls of one message that are carried out; the others are answered with this bound."""


class ToolLoop:
    """Asks, carries out the calls of the answer in their order, and asks again; an answer without calls is the last.

    What the model does wrong (an unknown tool, broken arguments) is told to it and is no failure. `stop_repeats` ends
    the conversation when the same calls come so many times running. Where a task has no tools, one answer is asked for.
    """

    def __init__(self, tool_format: ToolCallFormat, stop_repeats: int | None = None) -> None:
        self._form, self._stop_repeats = tool_format, stop_repeats

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Until the model answers without calling a tool, or a limit ends it."""
        if not environment.tools:
            await SingleAnswer().play(rollout, ask, environment)
            return
        before: list[JSON] = []
        repeats = 0
        while calls := await self._take_turn(rollout, ask, environment):
            asked = [normalize_call(call) for call in calls]
            repeats = repeats + 1 if asked == before else 1
            before = asked
            if self._stop_repeats and repeats >= self._stop_repeats:
                raise LimitReached("repeats")
            for number, call in enumerate(calls):
                said = await self._run_call(call, number, environment)
                rollout.messages = [*rollout.messages, Message("tool", said, tool_call_id=call.id)]

    async def _take_turn(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> list[ToolCall]:
        completion = await self._form.ask(ask, rollout.messages, environment.tools)
        rollout.messages = [*rollout.messages, completion.message]
        rollout.turns.append(completion.turn)
        return completion.message.tool_calls or []

    async def _run_call(self, call: ToolCall, number: int, environment: EnvironmentAccess) -> str:
        name = call.function.name
        known = [tool["function"]["name"] for tool in environment.tools]
        if number >= MAX_CALLS:
            return f"Error: not carried out; at most {MAX_CALLS} calls of one message are"
        if not name:
            return self._form.explain_misread(call.function.arguments)
        if name not in known:
            return f"Error: there is no tool called {name[:64]!r}; there are {', '.join(known)}"
        return await environment.use(name, call.function.arguments)


def normalize_call(call: ToolCall) -> JSON:
    """A call without what does not matter: the order of its arguments, and the spaces between them."""
    try:
        return [call.function.name, read_arguments(call.function.arguments, "they")]
    except ToolMisuse:
        return [call.function.name, call.function.arguments]


class Dialogue:
    """Plays turn after turn with an environment that speaks back; `answering` makes one answer, with tools or without.

    The environment hears the last answer that the limits allow, too: it may have to act on it.
    """

    def __init__(self, answering: Agent) -> None:
        self._answering = answering

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Until the environment replies None, or a limit ends it."""
        while True:
            await self._answering.play(rollout, ask, environment)
            said = await environment.reply(rollout)
            if said is None:
                return
            rollout.messages = [*rollout.messages, said]


class EnvironmentDriven:
    """Hands the rollout over, with the means to ask in the run's tool format."""

    def __init__(self, tool_format: ToolCallFormat) -> None:
        self._form = tool_format

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Until the environment has carried it to its end."""
        assert isinstance(environment, LoopSession)
        await environment.play(rollout, FormattedAsk(ask, self._form))


class FormattedAsk:
    """Asks in a format: tools are offered, and calls of them read, as the run has it."""

    def __init__(self, ask: AskModel, tool_format: ToolCallFormat) -> None:
        self._ask, self._form, self.sampling = ask, tool_format, ask.sampling

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """One answer."""
        return await (self._form.ask(self._ask, messages, tools) if tools else self._ask(messages, extra=extra))
