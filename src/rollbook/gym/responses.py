"""The response of a rollout, as NeMo Gym stores it in a row: written from a rollout, read from what a server answered.

It is a response of the Responses API (models/responses_api.py has the form of its items) that spans several calls of
the model: `output` has the items of all of them, with the token fields that trainers look for. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rollbook.core import JSON, Message, Rollout, Turn, Usage
from rollbook.errors import UsageError
from rollbook.models import INCOMPLETE_REASONS, make_response, read_output

FINISH_REASONS = {reason: finish for finish, reason in INCOMPLETE_REASONS.items()}


class ResponseContent(msgspec.Struct, frozen=True):
    """The content of a response: messages after the prompt, a turn for each of the model's, the limit that ended it."""

    messages: list[Message]
    turns: list[Turn]
    ended: str = ""


def make_rollout_response(
    rollout: Rollout, model: str, tools: Sequence[JSON] = (), uncounted: int | None = None
) -> dict[str, JSON]:
    """Return the response of a recorded rollout; `uncounted` replaces unknown counts of tokens."""
    return make_response(
        rollout.messages[len(rollout.task.messages) :],
        rollout.turns,
        name=f"{rollout.task.id}_{rollout.sample}",
        model=model,
        created=rollout.timing.start,
        tools=tools,
        ended=rollout.ended,
        uncounted=uncounted,
    )


def read_response(value: JSON, where: str = "response") -> ResponseContent:
    """Read a response; UsageError names what is wrong with it.

    Where no item has tokens, the last turn gets the counts of the whole response, so that the sum is right.
    """
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not an object")
    if not isinstance(value.get("output"), list):
        raise UsageError(f"{where}.output is not a list of items")
    messages, turns = read_output(value.get("output"), f"{where}.output")
    if turns and not any(turn.has_tokens for turn in turns):
        usage = read_usage(value.get("usage"))
        turns[-1] = msgspec.structs.replace(turns[-1], **msgspec.structs.asdict(usage))
    return ResponseContent(messages, _set_finish_reason(value, messages, turns), read_ended(value))


def _set_finish_reason(value: Mapping[str, JSON], messages: Sequence[Message], turns: list[Turn]) -> list[Turn]:
    """Set the response's end reason on the last turn; a prompt that did not fit is a turn without a message."""
    if not isinstance(value.get("incomplete_details"), dict):
        return turns
    reason = read_finish_reason(value, calls=bool(messages and messages[-1].tool_calls))
    if reason == "context_length":
        return [*turns, Turn(finish_reason=reason)]
    return [*turns[:-1], msgspec.structs.replace(turns[-1], finish_reason=reason)] if turns else turns


def read_finish_reason(response: Mapping[str, JSON], calls: bool) -> str:
    """Return why the last model call of a response ended; `calls`: its message calls tools."""
    details = response.get("incomplete_details")
    if isinstance(details, dict):
        if isinstance(own := details.get("finish_reason"), str):
            return own
        return FINISH_REASONS.get(str(details.get("reason")), "length")
    return "tool_calls" if calls else "stop"


def read_ended(response: Mapping[str, JSON]) -> str:
    """Return our limit that ended the conversation, if one did."""
    details = response.get("incomplete_details")
    return str(details.get("ended") or "") if isinstance(details, dict) else ""


def read_usage(value: JSON) -> Usage:
    """Read a response's `usage`; a missing one counts nothing."""
    if value is None:
        return Usage()
    if not isinstance(value, dict):
        raise UsageError(f"usage is not an object but {value!r:.80}")
    counts = [value.get(name) or 0 for name in ("input_tokens", "output_tokens")]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise UsageError(f"usage counts no tokens: {value!r:.200}")
    return Usage(*counts)
