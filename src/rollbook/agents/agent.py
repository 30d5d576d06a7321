"""The interface of every agent, and the built-in ones: a single answer, a tool loop, a dialogue, or an environment that
drives the rollout. An agent drives the conversation of one rollout and never scores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rollbook.agents.tool_formats import ToolCallFormat, get_tool_format
from rollbook.core import JSON, EnvironmentSpec, Limits, Message, Rollout, ToolCall, ToolFormat
from rollbook.environments import LoopSession, ToolMisuse, read_arguments
from rollbook.errors import LimitReached
from rollbook.models import AskModel, Completion


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


class SingleAnswer:
    """Asks once and keeps the answer."""

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Run one turn."""
        completion = await ask(rollout.messages)
        rollout.messages = [*rollout.messages, completion.message]
        rollout.turns.append(completion.turn)


MAX_CALLS = 64
"""Calls of one message that are executed; further calls get an error that names this bound."""


SHOWN_BY_TOOLS = "The tools returned:"


class ToolLoop:
    """Asks, executes the calls of the answer in their order, and asks again; an answer without calls is the last.

    The model's mistakes (an unknown tool, broken arguments) are reported to it, not failures. `stop_repeats` ends
    the conversation when the same calls come that many times in a row. A task without tools gets one answer.
    """

    def __init__(self, tool_format: ToolCallFormat, stop_repeats: int | None = None) -> None:
        self._form, self._stop_repeats = tool_format, stop_repeats

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Run until the model answers without calling a tool, or a limit ends it."""
        if not environment.tools:
            await SingleAnswer().play(rollout, ask, environment)
            return
        before: list[JSON] = []
        repeats = 0
        while calls := await self._take_turn(rollout, ask, environment):
            normalized = [normalize_call(call) for call in calls]
            repeats = repeats + 1 if normalized == before else 1
            before = normalized
            if self._stop_repeats and repeats >= self._stop_repeats:
                raise LimitReached("repeats")
            for number, call in enumerate(calls):
                result = await self._run_call(call, number, environment)
                rollout.messages = [*rollout.messages, Message("tool", result, tool_call_id=call.id)]
            shown = environment.take_shown() if isinstance(environment, LoopSession) else []
            if shown:  # in a message of the user: most servers take only text in the results of tools
                lead: JSON = {"type": "text", "text": SHOWN_BY_TOOLS}
                rollout.messages = [*rollout.messages, Message("user", [lead, *shown])]

    async def _take_turn(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> list[ToolCall]:
        completion = await self._form.ask(ask, rollout.messages, environment.tools)
        rollout.messages = [*rollout.messages, completion.message]
        rollout.turns.append(completion.turn)
        return completion.message.tool_calls or []

    async def _run_call(self, call: ToolCall, number: int, environment: EnvironmentAccess) -> str:
        name = call.function.name
        known = [tool["function"]["name"] for tool in environment.tools]
        if number >= MAX_CALLS:
            return f"Error: not run: one message may have at most {MAX_CALLS} calls"
        if not name:
            return self._form.explain_misread(call.function.arguments)
        if name not in known:
            return f"Error: there is no tool called {name[:64]!r}; there are {', '.join(known)}"
        return await environment.use(name, call.function.arguments)


def normalize_call(call: ToolCall) -> JSON:
    """Return a call without what does not matter: the order of its arguments, and the spaces between them."""
    try:
        return [call.function.name, read_arguments(call.function.arguments, "they")]
    except ToolMisuse:
        return [call.function.name, call.function.arguments]


class Dialogue:
    """Alternates with an environment that replies; `answering` makes one answer, with tools or without.

    The environment also gets the last answer that the limits allow: it may have to act on it.
    """

    def __init__(self, answering: Agent) -> None:
        self._answering = answering

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Run until the environment replies None, or a limit ends it."""
        while True:
            await self._answering.play(rollout, ask, environment)
            reply = await environment.reply(rollout)
            if reply is None:
                return
            rollout.messages = [*rollout.messages, reply]


class EnvironmentDriven:
    """Hands the rollout to the environment, with a way to ask in the run's tool format."""

    def __init__(self, tool_format: ToolCallFormat) -> None:
        self._form = tool_format

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Run until the environment has ended the rollout."""
        assert isinstance(environment, LoopSession)
        await environment.play(rollout, FormattedAsk(ask, self._form))


class FormattedAsk:
    """Asks in the run's tool format: offers tools, and reads their calls."""

    def __init__(self, ask: AskModel, tool_format: ToolCallFormat) -> None:
        self._ask, self._form, self.sampling = ask, tool_format, ask.sampling

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """Return one answer."""
        return await (self._form.ask(self._ask, messages, tools) if tools else self._ask(messages, extra=extra))


def choose_agent(spec: EnvironmentSpec, limits: Limits, tool_format: ToolFormat) -> Agent:
    """Return the agent of an environment: a tool loop for tools, a dialogue for `reply`, or loops in a dialogue."""
    if spec.plays:
        return EnvironmentDriven(get_tool_format(tool_format))
    uses_tools = spec.tools or spec.offers
    answering: Agent = ToolLoop(get_tool_format(tool_format), limits.stop_repeats) if uses_tools else SingleAnswer()
    return Dialogue(answering) if spec.replies else answering
