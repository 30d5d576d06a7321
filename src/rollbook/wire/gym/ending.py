"""How a model call ended: a finish reason in chat completions, a status with its details in the Responses API."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.core.json import JSON

COMPLETED, INCOMPLETE = "completed", "incomplete"
_FINISHED = ("stop", "tool_calls", "function_call")
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_READ = {reason: finish for finish, reason in _REASONS.items()}


def ending(finish_reason: str, ended: str = "") -> dict[str, JSON]:
    """`status` and `incomplete_details` of a response; `ended` is the limit of ours that ended the conversation.

    What the Responses API has no word for rides along under our own.
    """
    if finish_reason in _FINISHED and not ended:
        return {"status": COMPLETED, "incomplete_details": None}
    details: dict[str, JSON] = {"reason": _REASONS.get(finish_reason)}
    if finish_reason == "context_length":
        details["reason"] = "max_output_tokens"
    if finish_reason not in _REASONS:
        details["finish_reason"] = finish_reason
    return {"status": INCOMPLETE, "incomplete_details": {**details, **({"ended": ended} if ended else {})}}


def finish_reason(response: Mapping[str, JSON], calls: bool) -> str:
    """Why the last model call of a response ended; `calls` says whether its message calls tools."""
    details = response.get("incomplete_details")
    if isinstance(details, dict):
        if isinstance(own := details.get("finish_reason"), str):
            return own
        return _READ.get(str(details.get("reason")), "length")
    return "tool_calls" if calls else "stop"


def ended_by(response: Mapping[str, JSON]) -> str:
    """The limit of ours that ended the conversation, if one did."""
    details = response.get("incomplete_details")
    return str(details.get("ended") or "") if isinstance(details, dict) else ""


def item_status(finish_reason: str) -> str:
    """The status of the last item of a model call."""
    return INCOMPLETE if finish_reason == "length" else COMPLETED
