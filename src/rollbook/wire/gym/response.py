"""A response: all that the model and its tools said in one rollout, as the Responses API has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rollbook.core.json import JSON
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout, Usage
from rollbook.core.turn import Turn
from rollbook.errors import UsageError
from rollbook.wire.gym.ending import ended_by, ending, finish_reason
from rollbook.wire.gym.items import items_of, read_output
from rollbook.wire.gym.tools import flat_tools
from rollbook.wire.gym.usage import read_usage, usage_fields


class Said(msgspec.Struct, frozen=True):
    """What a response says: messages after the prompt, a turn for each of the model's, the limit that ended it."""

    messages: list[Message]
    turns: list[Turn]
    ended: str = ""


def response_of(
    messages: Sequence[Message],
    turns: Sequence[Turn],
    *,
    name: str,
    model: str,
    created: float = 0.0,
    tools: Sequence[JSON] = (),
    ended: str = "",
) -> dict[str, JSON]:
    """The response of one rollout; `messages` are those after the prompt, `tools` in the form of chat completions."""
    usage = Usage(sum(turn.prompt_tokens for turn in turns), sum(turn.completion_tokens for turn in turns))
    return {
        "id": f"resp_{name}",
        "created_at": created,
        "model": model,
        "object": "response",
        "output": items_of(messages, turns, f"{name}_"),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": flat_tools(tools),
        **ending(turns[-1].finish_reason if turns else "stop", ended),
        "usage": usage_fields(usage),
    }


def rollout_response(rollout: Rollout, model: str, tools: Sequence[JSON] = ()) -> dict[str, JSON]:
    """The response of a rollout of ours."""
    return response_of(
        rollout.messages[len(rollout.task.messages) :],
        rollout.turns,
        name=f"{rollout.task.id}_{rollout.sample}",
        model=model,
        created=rollout.timing.start,
        tools=tools,
        ended=rollout.ended,
    )


def read_response(value: JSON, where: str = "response") -> Said:
    """What a response says; UsageError names what is wrong with it.

    Where no item carries tokens, the tokens of the whole response are counted on the last turn: the sum is right.
    """
    if not isinstance(value, dict):
        raise UsageError(f"{where} is no object")
    if not isinstance(value.get("output"), list):
        raise UsageError(f"{where}.output is no list of items")
    messages, turns = read_output(value.get("output"), f"{where}.output")
    if turns and not any(turn.has_tokens for turn in turns):
        turns[-1] = _counted(turns[-1], read_usage(value.get("usage")))
    return Said(messages, _ended(value, messages, turns), ended_by(value))


def _counted(turn: Turn, usage: Usage) -> Turn:
    return msgspec.structs.replace(turn, prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)


def _ended(value: Mapping[str, JSON], messages: Sequence[Message], turns: list[Turn]) -> list[Turn]:
    """The turns, the last ended as the response says; a prompt that did not fit is a turn without a message."""
    if not isinstance(value.get("incomplete_details"), dict):
        return turns
    reason = finish_reason(value, calls=bool(messages and messages[-1].tool_calls))
    if reason == "context_length":
        return [*turns, Turn(finish_reason=reason)]
    return [*turns[:-1], msgspec.structs.replace(turns[-1], finish_reason=reason)] if turns else turns
