"""OpenAI's chat completions: a request as messages, tools and sampling; an answer as a body or chunks. No I/O."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

from rollbook.core import JSON, Function, Message, ToolCall, Turn
from rollbook.errors import UsageError
from rollbook.gateway.protocol import (
    COMMENT,
    DONE,
    FLAG_SCHEMA,
    SAMPLING_SCHEMAS,
    ErrorReply,
    ModelRequest,
    WireProtocol,
    check_sampling,
    encode_event,
    make_error_schema,
    make_text_only_error,
    read_flag,
    read_media_part,
    read_model,
    read_objects,
    read_optional_objects,
    read_text,
)
from rollbook.models import Completion

OWN_FIELDS = (
    "model",
    "messages",
    "tools",
    "stream",
    "stream_options",
    "n",
    "logprobs",
    "top_logprobs",
    "return_token_ids",
)
IGNORED_FIELDS = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
)
"""Fields that concern an account, and not the answer."""

REFUSED_FIELDS = {
    "functions": "give tools",
    "function_call": "give tool_choice",
    "audio": "ask for text",
    "web_search_options": "give the search as a tool",
    "kv_transfer_params": "prompts are rendered by the server",
    "use_beam_search": "only what was sampled can be recorded",
}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Templates of open models have no developer role."""


PART_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {"type": {"enum": ["text", "refusal", "image_url", "input_audio"]}, "text": {"type": "string"}},
    "required": ["type"],
}
TOOL_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
TOOL_CALL_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": ["string", "null"]}},
            "required": ["name"],
        },
    },
    "required": ["id", "function"],
}


def read_request(body: dict[str, JSON]) -> ModelRequest:
    """Read a request."""
    for name, instead in REFUSED_FIELDS.items():
        if body.get(name):
            raise UsageError(f"{name} is not supported here: {instead}")
    if body.get("n") is not None and (body["n"] != 1 or isinstance(body["n"], bool)):
        raise UsageError(f"n is {body['n']!r:.40}: every call has one answer here; ask again for another")
    if body.get("top_logprobs"):
        raise UsageError("top_logprobs is not supported here: only the logprob of what was sampled is known")
    extra = {name: value for name, value in body.items() if name not in (*OWN_FIELDS, *IGNORED_FIELDS)}
    extra = check_sampling(extra)  # before one limit replaces the other: both must be numbers
    most = extra.pop("max_completion_tokens", None)
    if most is not None:
        extra["max_tokens"] = most
    options = body.get("stream_options")
    return ModelRequest(
        read_messages(body.get("messages")),
        read_model(body),
        read_tools(body.get("tools")),
        check_sampling(extra),
        read_flag(body, "stream"),
        isinstance(options, dict) and read_flag(options, "include_usage"),
        read_flag(body, "return_token_ids"),
        read_flag(body, "logprobs"),
    )


def read_tools(value: JSON) -> list[JSON]:
    """Return the tools; only functions are supported."""
    tools: list[JSON] = read_optional_objects(value, "tools")
    for number, tool in enumerate(tools):
        if tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise UsageError(f"tools[{number}] is {tool.get('type')!r:.40}: only functions are supported here")
        read_text(tool["function"], "name", f"tools[{number}].function")
    return tools


def read_messages(value: JSON) -> list[Message]:
    """Return the conversation; UsageError names the message that is wrong."""
    if not value:
        raise UsageError("messages is missing or empty")
    return [_read_message(item, f"messages[{number}]") for number, item in enumerate(read_objects(value, "messages"))]


def _read_message(value: Mapping[str, JSON], where: str) -> Message:
    role = ROLES.get(str(value.get("role")))
    if role is None:
        raise UsageError(f"{where}.role is {value.get('role')!r:.40}; there are {', '.join(ROLES)}")
    if value.get("function_call"):
        raise UsageError(f"{where}.function_call is not supported here: give tool_calls")
    listed = read_optional_objects(value.get("tool_calls"), f"{where}.tool_calls")
    calls = [_read_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(listed)]
    content = value.get("content")
    if value.get("tool_call_id") is not None:
        read_text(value, "tool_call_id", where)
    return Message(
        role,
        _read_content(value.get("refusal") if content in (None, "") else content, f"{where}.content"),
        _get_text(value, "reasoning") or _get_text(value, "reasoning_content"),
        calls or None,
        _get_text(value, "tool_call_id"),
        _get_text(value, "name"),
    )


def _read_content(value: JSON, where: str) -> str | list[dict[str, JSON]] | None:
    if value is None or isinstance(value, str):
        return value
    return [_read_part(part, f"{where}[{number}]") for number, part in enumerate(read_objects(value, where))]


def _read_part(part: dict[str, JSON], where: str) -> dict[str, JSON]:
    media = read_media_part(part, where)
    if media is not None:
        return media
    if part.get("type") not in ("text", "refusal"):
        raise make_text_only_error(part.get("type"), where)
    return {"type": "text", "text": read_text(part, part["type"], where)}


def _read_call(value: Mapping[str, JSON], where: str) -> ToolCall:
    function = value.get("function")
    if not isinstance(function, dict):
        raise UsageError(f"{where} calls no function")
    arguments = "" if function.get("arguments") is None else read_text(function, "arguments", where)
    return ToolCall(read_text(value, "id", where), Function(read_text(function, "name", where), arguments))


def _get_text(value: Mapping[str, JSON], name: str) -> str | None:
    text = value.get(name)
    return text if isinstance(text, str) and text else None


def make_answer(request: ModelRequest, completion: Completion) -> JSON:
    """Return the body of an answer."""
    turn = completion.turn
    choice: dict[str, JSON] = {
        "index": 0,
        "message": {"role": "assistant", "refusal": None, **_make_message(completion.message)},
        "finish_reason": turn.finish_reason,
        "logprobs": _make_logprobs(turn) if request.logprobs else None,
    }
    ids = request.ids and turn.ids is not None
    if ids:
        choice["token_ids"] = turn.ids
    body = {**_make_head(request, "chat.completion"), "choices": [choice], "usage": _make_usage(turn)}
    return {**body, "prompt_token_ids": turn.prompt_ids} if ids else body


def stream_answer(request: ModelRequest, completion: Completion) -> Iterator[bytes]:
    """Yield the same as chunks: the role, reasoning, text and calls, and how it ended."""
    head, turn, message = _make_head(request, "chat.completion.chunk"), completion.turn, completion.message
    ids: dict[str, JSON] = {}
    if request.ids and turn.ids is not None:
        head, ids = {**head, "prompt_token_ids": turn.prompt_ids}, {"token_ids": turn.ids}

    def chunk(delta: JSON, finish: str | None = None, **more: JSON) -> bytes:
        return encode_event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]})

    yield chunk({"role": "assistant", "content": ""}, logprobs=None)
    if message.reasoning:
        yield chunk({"reasoning": message.reasoning, "reasoning_content": message.reasoning}, logprobs=None)
    if message.text:
        yield chunk({"content": message.text}, logprobs=None)
    for number, call in enumerate(_make_calls(message.tool_calls or ())):
        yield chunk({"tool_calls": [{"index": number, **call}]}, logprobs=None)
    yield chunk({}, turn.finish_reason, logprobs=_make_logprobs(turn) if request.logprobs else None, **ids)
    if request.usage:
        yield encode_event({**head, "choices": [], "usage": _make_usage(turn)})
    yield DONE


def make_error(reply: ErrorReply) -> JSON:
    """Return the body of an error."""
    kind = "invalid_request_error" if reply.status < 500 else "server_error"
    return {"error": {"message": reply.line, "type": kind, "param": None, "code": reply.kind}}


def _make_head(request: ModelRequest, kind: str) -> dict[str, JSON]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _make_message(message: Message) -> dict[str, JSON]:
    fields: dict[str, JSON] = {"content": None if message.tool_calls and not message.text else message.text}
    if message.reasoning:
        fields |= {"reasoning": message.reasoning, "reasoning_content": message.reasoning}
    if message.tool_calls:
        fields["tool_calls"] = _make_calls(message.tool_calls)
    return fields


def _make_calls(calls: Sequence[ToolCall]) -> list[dict[str, JSON]]:
    return [{"id": call.id, "type": "function", "function": call.function} for call in calls]


def _make_usage(turn: Turn) -> dict[str, JSON]:
    prompt, completion = turn.prompt_tokens, turn.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _make_logprobs(turn: Turn) -> JSON:
    """Return the logprobs by token id, as vLLM writes them: the text of a single token is not known here."""
    if turn.ids is None or turn.logprobs is None:
        return None
    pairs = zip(turn.ids, turn.logprobs, strict=True)
    rows: list[JSON] = [{"token": f"token_id:{i}", "logprob": p, "bytes": None, "top_logprobs": []} for i, p in pairs]
    return {"content": rows, "refusal": None}


REQUEST_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "model": {"type": ["string", "null"]},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "role": {"enum": list(ROLES)},
                    "content": {"type": ["string", "array", "null"], "items": PART_SCHEMA},
                    "tool_calls": {"type": ["array", "null"], "items": TOOL_CALL_SCHEMA},
                    "tool_call_id": {"type": ["string", "null"]},
                },
                "required": ["role"],
            },
        },
        "tools": {"type": ["array", "null"], "items": TOOL_SCHEMA},
        **SAMPLING_SCHEMAS,
        "max_tokens": {"type": ["integer", "null"], "minimum": 1},
        "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1},
        "n": {"enum": [1, None]},
        **dict.fromkeys(("stream", "logprobs", "return_token_ids"), FLAG_SCHEMA),
    },
    "required": ["messages"],
}
ANSWER_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "object": {"const": "chat.completion"},
        "choices": {"type": "array", "items": {"type": "object", "required": ["message", "finish_reason"]}},
        "usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"]},
    },
    "required": ["id", "object", "created", "model", "choices", "usage"],
}
ERROR_SCHEMA = make_error_schema("message", "type", "code")
CHAT = WireProtocol(
    "OpenAI's chat completions",
    read_request,
    make_answer,
    stream_answer,
    make_error,
    COMMENT,
    None,
    REQUEST_SCHEMA,
    ANSWER_SCHEMA,
    ERROR_SCHEMA,
)
