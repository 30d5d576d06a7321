"""Anthropic's messages: a request as messages, tools and sampling; an answer as blocks or as events. No I/O here.

A user's message of tool results and text is several of ours: each result, then the text. Thinking is reasoning; its
signature is of no use to a model that is not theirs, and is empty in answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping

import msgspec

from rollbook.core.json import JSON, decode, encode
from rollbook.core.message import Function, Message, ToolCall
from rollbook.core.turn import Turn
from rollbook.errors import UsageError
from rollbook.models.model import Completion
from rollbook.wire.gateway.asked import Asked, Dialect, checked, objects, only_text, word
from rollbook.wire.gateway.events import event
from rollbook.wire.gateway.trouble import Trouble

Block = dict[str, JSON]

SAMPLING = {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
SAMPLING |= {"stop_sequences": "stop", "seed": "seed"}
REFUSED = ("container", "mcp_servers")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERRORS = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
_ERRORS |= {408: "timeout_error", 503: "overloaded_error", 504: "timeout_error"}


def read(body: dict[str, JSON]) -> Asked:
    """The request."""
    for name in REFUSED:
        if body.get(name):
            raise UsageError(f"{name} is not supported here")
    if not body.get("messages"):
        raise UsageError("messages is missing or empty")
    messages = _system(body.get("system"))
    for number, item in enumerate(objects(body["messages"], "messages")):
        messages += _messages(item, f"messages[{number}]")
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(objects(body.get("tools") or [], "tools"))]
    extra = {theirs: body.get(name) for name, theirs in SAMPLING.items()}
    return Asked(
        messages,
        str(body.get("model") or ""),
        tools,
        checked(extra | _choice(body.get("tool_choice"))),
        bool(body.get("stream")),
        ids=bool(body.get("return_token_ids")),
    )


def _system(value: JSON) -> list[Message]:
    text = value if isinstance(value, str) else _text(value, "system") if value else ""
    return [Message("system", text)] if text else []


def _messages(item: Block, where: str) -> list[Message]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system"):
        raise UsageError(f"{where}.role is {role!r:.40}; there are user, assistant, system")
    if isinstance(content, str):
        return [Message(role, content)]
    blocks = objects(content, f"{where}.content")
    return [_assistant(blocks, where)] if role == "assistant" else _given(role, blocks, where)


def _given(role: str, blocks: list[Block], where: str) -> list[Message]:
    results = [block for block in blocks if block.get("type") == "tool_result"]
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    messages = [_result(block, where) for block in results]
    return [*messages, Message(role, _text(rest, where))] if rest or not results else messages


def _result(block: Block, where: str) -> Message:
    content = block.get("content")
    text = content if isinstance(content, str) else _text(content or [], f"{where}.tool_result")
    return Message("tool", text, tool_call_id=word(block, "tool_use_id", f"{where}.tool_result"))


def _assistant(blocks: list[Block], where: str) -> Message:
    thoughts = [str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking"]
    calls = [_call(block, where) for block in blocks if block.get("type") == "tool_use"]
    other = ("thinking", "redacted_thinking", "tool_use")
    text = _text([block for block in blocks if block.get("type") not in other], where)
    return Message("assistant", text if text or not calls else None, "\n".join(thoughts) or None, calls or None)


def _call(block: Block, where: str) -> ToolCall:
    name, given = word(block, "name", f"{where}.tool_use"), encode(block.get("input") or {}).decode()
    return ToolCall(word(block, "id", f"{where}.tool_use"), Function(name, given))


def _text(value: JSON, where: str) -> str:
    said = []
    for number, block in enumerate(objects(value, where)):
        if block.get("type") != "text":
            raise only_text(block.get("type"), f"{where}[{number}]")
        said.append(str(block.get("text") or ""))
    return "\n".join(said)


def _tool(tool: Block, where: str) -> JSON:
    if tool.get("type") not in (None, "custom"):
        raise UsageError(f"{where} is {tool['type']!r:.40}: only tools with an input_schema are supported here")
    function = {"name": word(tool, "name", where), "parameters": tool.get("input_schema") or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(value: JSON) -> dict[str, JSON]:
    if not isinstance(value, dict):
        return {}
    found: dict[str, JSON] = {"parallel_tool_calls": False} if value.get("disable_parallel_tool_use") else {}
    if value.get("type") == "tool":
        named = {"type": "function", "function": {"name": word(value, "name", "tool_choice")}}
        return {**found, "tool_choice": named}
    if value.get("type") not in _CHOICES:
        raise UsageError(f"tool_choice.type is {value.get('type')!r:.40}; there are tool, {', '.join(_CHOICES)}")
    return {**found, "tool_choice": _CHOICES[value["type"]]}


def answer(asked: Asked, completion: Completion) -> JSON:
    """The body of an answer."""
    turn = completion.turn
    body = {**_head(asked), "content": blocks_of(completion.message), **_ending(completion), "usage": _usage(turn)}
    return {**body, "prompt_token_ids": turn.prompt_ids, "token_ids": turn.ids} if asked.ids else body


def stream(asked: Asked, completion: Completion) -> Iterator[bytes]:
    """The same as events, block after block."""
    turn = completion.turn
    begun = {**_head(asked), "content": [], "stop_reason": None, "stop_sequence": None}
    usage = {**_usage(turn), "output_tokens": 0}
    yield _event("message_start", message={**begun, "usage": usage})
    for number, block in enumerate(blocks_of(completion.message)):
        empty, deltas = _parts(block)
        yield _event("content_block_start", index=number, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=number, delta=delta)
        yield _event("content_block_stop", index=number)
    yield _event("message_delta", delta=_ending(completion), usage={"output_tokens": turn.completion_tokens})
    yield _event("message_stop")


def _event(kind: str, **fields: JSON) -> bytes:
    return event({"type": kind, **fields}, kind)


def blocks_of(message: Message) -> list[Block]:
    """What the model thought, said and called."""
    blocks: list[Block] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
    if message.text or not message.tool_calls:
        blocks.append({"type": "text", "text": message.text})
    for call in message.tool_calls or ():
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": _input(call)})
    return blocks


def _input(call: ToolCall) -> JSON:
    """The arguments; what is no object is told inside of one, as it is to the model."""
    try:
        given = decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {"unreadable": call.function.arguments}


def _parts(block: Block) -> tuple[Block, list[Block]]:
    """A block as it begins, and what is then added to it."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        delta = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": ""}, [delta, {"type": "signature_delta", "signature": ""}]
    given = {"type": "input_json_delta", "partial_json": encode(block["input"]).decode()}
    return {**block, "input": {}}, [given]


def error(trouble: Trouble) -> JSON:
    """The body of an error."""
    kind = _ERRORS.get(trouble.status, "api_error")
    words = f"prompt is too long: {trouble.words}" if trouble.kind == "context_length_exceeded" else trouble.words
    return {"type": "error", "error": {"type": kind, "message": words, "code": trouble.kind}, "request_id": None}


def _head(asked: Asked) -> Mapping[str, JSON]:
    return {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": asked.model}


def _ending(completion: Completion) -> Block:
    reason = _STOPS.get(completion.turn.finish_reason, "end_turn")
    called = bool(completion.message.tool_calls) and reason == "end_turn"
    return {"stop_reason": "tool_use" if called else reason, "stop_sequence": None}


def _usage(turn: Turn) -> Block:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": turn.prompt_tokens, "output_tokens": turn.completion_tokens, **cached}


PING = _event("ping")
ANTHROPIC = Dialect(read, answer, stream, error, PING, "error")
