"""Chat completions: a request as messages, tools and sampling; an answer as a body or as chunks. No I/O here."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

from rollbook.core.json import JSON
from rollbook.core.message import Function, Message, ToolCall
from rollbook.core.turn import Turn
from rollbook.errors import UsageError
from rollbook.models.model import Completion
from rollbook.wire.gateway.asked import Asked, Dialect, checked, objects, only_text, word
from rollbook.wire.gateway.events import COMMENT, DONE, event
from rollbook.wire.gateway.trouble import Trouble

OURS = ("model", "messages", "tools", "stream", "stream_options", "n", "logprobs", "top_logprobs", "return_token_ids")
IGNORED = ("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store")
"""What is for an account, and says nothing about the answer."""

REFUSED = {
    "functions": "give tools",
    "function_call": "give tool_choice",
    "audio": "ask for text",
    "web_search_options": "give the search as a tool",
    "kv_transfer_params": "prompts are rendered by the server",
    "use_beam_search": "only what was sampled can be recorded",
}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Templates of open models know no developer."""


def read(body: dict[str, JSON]) -> Asked:
    """The request."""
    for name, instead in REFUSED.items():
        if body.get(name):
            raise UsageError(f"{name} is not supported here: {instead}")
    if body.get("n") not in (None, 1):
        raise UsageError(f"n is {body['n']!r:.40}: every call has one answer here; ask again for another")
    if body.get("top_logprobs"):
        raise UsageError("top_logprobs is not supported here: only the logprob of what was sampled is known")
    extra = {name: value for name, value in body.items() if name not in (*OURS, *IGNORED)}
    extra["max_tokens"] = extra.pop("max_completion_tokens", None) or extra.get("max_tokens")
    options = body.get("stream_options")
    return Asked(
        read_messages(body.get("messages")),
        str(body.get("model") or ""),
        read_tools(body.get("tools") or []),
        checked(extra),
        bool(body.get("stream")),
        isinstance(options, dict) and bool(options.get("include_usage")),
        bool(body.get("return_token_ids")),
        bool(body.get("logprobs")),
    )


def read_tools(value: JSON) -> list[JSON]:
    """Tools; only functions can be called by a model that knows no others."""
    for number, tool in enumerate(objects(value, "tools")):
        if tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise UsageError(f"tools[{number}] is {tool.get('type')!r:.40}: only functions are supported here")
        word(tool["function"], "name", f"tools[{number}].function")
    tools: list[JSON] = value
    return tools


def read_messages(value: JSON) -> list[Message]:
    """The conversation; UsageError names the message that is wrong."""
    if not value:
        raise UsageError("messages is missing or empty")
    return [_message(item, f"messages[{number}]") for number, item in enumerate(objects(value, "messages"))]


def _message(value: Mapping[str, JSON], where: str) -> Message:
    role = ROLES.get(str(value.get("role")))
    if role is None:
        raise UsageError(f"{where}.role is {value.get('role')!r:.40}; there are {', '.join(ROLES)}")
    if value.get("function_call"):
        raise UsageError(f"{where}.function_call is not supported here: give tool_calls")
    calls = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(value.get("tool_calls") or ())]
    return Message(
        role,
        _content(value.get("content") or value.get("refusal"), f"{where}.content"),
        _said(value, "reasoning") or _said(value, "reasoning_content"),
        calls or None,
        _said(value, "tool_call_id"),
        _said(value, "name"),
    )


def _content(value: JSON, where: str) -> str | list[dict[str, JSON]] | None:
    if value is None or isinstance(value, str):
        return value
    for number, part in enumerate(objects(value, where)):
        if part.get("type") not in ("text", "refusal"):
            raise only_text(part.get("type"), f"{where}[{number}]")
    parts: list[dict[str, JSON]] = value
    return [{"type": "text", "text": str(part.get("text") or part.get("refusal") or "")} for part in parts]


def _call(value: JSON, where: str) -> ToolCall:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        raise UsageError(f"{where} calls no function")
    return ToolCall(word(value, "id", where), Function(word(function, "name", where), str(function.get("arguments"))))


def _said(value: Mapping[str, JSON], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) and found else None


def answer(asked: Asked, completion: Completion) -> JSON:
    """The body of an answer."""
    turn = completion.turn
    choice: dict[str, JSON] = {
        "index": 0,
        "message": {"role": "assistant", "refusal": None, **_spoken(completion.message)},
        "finish_reason": turn.finish_reason,
        "logprobs": _logprobs(turn) if asked.logprobs else None,
    }
    ids = asked.ids and turn.ids is not None
    if ids:
        choice["token_ids"] = turn.ids
    body = {**_head(asked, "chat.completion"), "choices": [choice], "usage": _usage(turn)}
    return {**body, "prompt_token_ids": turn.prompt_ids} if ids else body


def stream(asked: Asked, completion: Completion) -> Iterator[bytes]:
    """The same as chunks: who speaks, what was thought, said and called, how it ended."""
    head, turn, message = _head(asked, "chat.completion.chunk"), completion.turn, completion.message
    ids: dict[str, JSON] = {}
    if asked.ids and turn.ids is not None:
        head, ids = {**head, "prompt_token_ids": turn.prompt_ids}, {"token_ids": turn.ids}

    def chunk(delta: JSON, finish: str | None = None, **more: JSON) -> bytes:
        return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]})

    yield chunk({"role": "assistant", "content": ""}, logprobs=None)
    if message.reasoning:
        yield chunk({"reasoning": message.reasoning, "reasoning_content": message.reasoning}, logprobs=None)
    if message.text:
        yield chunk({"content": message.text}, logprobs=None)
    for number, call in enumerate(_calls(message.tool_calls or ())):
        yield chunk({"tool_calls": [{"index": number, **call}]}, logprobs=None)
    yield chunk({}, turn.finish_reason, logprobs=_logprobs(turn) if asked.logprobs else None, **ids)
    if asked.usage:
        yield event({**head, "choices": [], "usage": _usage(turn)})
    yield DONE


def error(trouble: Trouble) -> JSON:
    """The body of an error."""
    kind = "invalid_request_error" if trouble.status < 500 else "server_error"
    return {"error": {"message": trouble.words, "type": kind, "param": None, "code": trouble.kind}}


def _head(asked: Asked, kind: str) -> dict[str, JSON]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.model,
    }


def _spoken(message: Message) -> dict[str, JSON]:
    said: dict[str, JSON] = {"content": None if message.tool_calls and not message.text else message.text}
    if message.reasoning:
        said |= {"reasoning": message.reasoning, "reasoning_content": message.reasoning}
    if message.tool_calls:
        said["tool_calls"] = _calls(message.tool_calls)
    return said


def _calls(calls: Sequence[ToolCall]) -> list[dict[str, JSON]]:
    return [{"id": call.id, "type": "function", "function": call.function} for call in calls]


def _usage(turn: Turn) -> dict[str, JSON]:
    prompt, completion = turn.prompt_tokens, turn.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _logprobs(turn: Turn) -> JSON:
    """The logprobs under the ids of their tokens, as vLLM writes them: nobody here knows the text of one token."""
    if turn.ids is None or turn.logprobs is None:
        return None
    pairs = zip(turn.ids, turn.logprobs, strict=True)
    rows: list[JSON] = [{"token": f"token_id:{i}", "logprob": p, "bytes": None, "top_logprobs": []} for i, p in pairs]
    return {"content": rows, "refusal": None}


CHAT = Dialect(read, answer, stream, error, COMMENT, None)
