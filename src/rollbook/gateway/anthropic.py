"""Anthropic's messages: a request as messages, tools and sampling; an answer as blocks or as events. No I/O here.

A user's message of tool results and text becomes several of ours: each result, then the text. Thinking is reasoning;
its signature is useless to other models than Anthropic's, and is empty in answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping

from rollbook.core import JSON, JSON_ERRORS, ContentPart, Function, Message, ToolCall, Turn, decode, encode
from rollbook.errors import UsageError
from rollbook.gateway.protocol import (
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

Block = dict[str, JSON]

SAMPLING_FIELDS = {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
SAMPLING_FIELDS |= {"stop_sequences": "stop", "seed": "seed"}

REFUSED_FIELDS = ("container", "mcp_servers")
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
_ERROR_TYPES |= {408: "timeout_error", 503: "overloaded_error", 504: "timeout_error"}


def read_request(body: dict[str, JSON]) -> ModelRequest:
    """Read a request."""
    for name in REFUSED_FIELDS:
        if body.get(name):
            raise UsageError(f"{name} is not supported here")
    if not body.get("messages"):
        raise UsageError("messages is missing or empty")
    messages = _read_system(body.get("system"))
    for number, item in enumerate(read_objects(body["messages"], "messages")):
        messages += _read_messages(item, f"messages[{number}]")
    tools = [
        _read_tool(tool, f"tools[{i}]") for i, tool in enumerate(read_optional_objects(body.get("tools"), "tools"))
    ]
    extra = {chat_name: body.get(name) for name, chat_name in SAMPLING_FIELDS.items()}
    return ModelRequest(
        messages,
        read_model(body),
        tools,
        check_sampling(extra | _read_tool_choice(body.get("tool_choice"))),
        read_flag(body, "stream"),
        ids=read_flag(body, "return_token_ids"),
    )


def _read_system(value: JSON) -> list[Message]:
    text = value if isinstance(value, str) else "" if value is None else _read_block_text(value, "system")
    return [Message("system", text)] if text else []


def _read_messages(item: Block, where: str) -> list[Message]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system"):
        raise UsageError(f"{where}.role is {role!r:.40}; there are user, assistant, system")
    if isinstance(content, str):
        return [Message(role, content)]
    blocks = read_objects(content, f"{where}.content")
    return [_read_assistant(blocks, where)] if role == "assistant" else _read_input(role, blocks, where)


def _read_input(role: str, blocks: list[Block], where: str) -> list[Message]:
    results = [block for block in blocks if block.get("type") == "tool_result"]
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    messages = [_read_result(block, where) for block in results]
    return [*messages, Message(role, _read_blocks(rest, where))] if rest or not results else messages


def _read_blocks(blocks: list[Block], where: str) -> str | list[ContentPart]:
    """Return the text of blocks; with images among them, all as parts of a chat message."""
    if all(block.get("type") != "image" for block in blocks):
        return _read_block_text(blocks, where)
    return [_read_block(block, f"{where}[{number}]") for number, block in enumerate(blocks)]


def _read_block(block: Block, where: str) -> ContentPart:
    if block.get("type") != "image":
        return {"type": "text", "text": _read_block_text([block], where)}
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") not in ("base64", "url"):
        raise UsageError(f"{where}: an image needs a source of the type base64 or url")
    inline = f"data:{source.get('media_type')};base64,{source.get('data')}"
    url = source.get("url") if source["type"] == "url" else inline
    part = read_media_part({"type": "image_url", "image_url": {"url": url}}, where)
    assert part is not None
    return part


def _read_result(block: Block, where: str) -> Message:
    content = block.get("content")
    blocks = [] if content is None else content
    text = blocks if isinstance(blocks, str) else _read_block_text(blocks, f"{where}.tool_result")
    return Message("tool", text, tool_call_id=read_text(block, "tool_use_id", f"{where}.tool_result"))


def _read_assistant(blocks: list[Block], where: str) -> Message:
    thoughts = [str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking"]
    calls = [_read_call(block, where) for block in blocks if block.get("type") == "tool_use"]
    other = ("thinking", "redacted_thinking", "tool_use")
    text = _read_block_text([block for block in blocks if block.get("type") not in other], where)
    return Message("assistant", text if text or not calls else None, "\n".join(thoughts) or None, calls or None)


def _read_call(block: Block, where: str) -> ToolCall:
    arguments = {} if block.get("input") is None else block["input"]
    if not isinstance(arguments, dict):
        raise UsageError(f"{where}.tool_use.input is not an object but {arguments!r:.80}")
    function = Function(read_text(block, "name", f"{where}.tool_use"), encode(arguments).decode())
    return ToolCall(read_text(block, "id", f"{where}.tool_use"), function)


def _read_block_text(value: JSON, where: str) -> str:
    texts = []
    for number, block in enumerate(read_objects(value, where)):
        if block.get("type") != "text":
            raise make_text_only_error(block.get("type"), f"{where}[{number}]")
        texts.append(read_text(block, "text", f"{where}[{number}]"))
    return "\n".join(texts)


def _read_tool(tool: Block, where: str) -> JSON:
    if tool.get("type") not in (None, "custom"):
        raise UsageError(f"{where} is {tool['type']!r:.40}: only tools with an input_schema are supported here")
    parameters = {"type": "object"} if tool.get("input_schema") is None else tool["input_schema"]
    if not isinstance(parameters, dict):
        raise UsageError(f"{where}.input_schema is not an object but {parameters!r:.80}")
    function = {"name": read_text(tool, "name", where), "parameters": parameters or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _read_tool_choice(value: JSON) -> dict[str, JSON]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"tool_choice is not an object but {value!r:.80}")
    options: dict[str, JSON] = {"parallel_tool_calls": False} if value.get("disable_parallel_tool_use") else {}
    if value.get("type") == "tool":
        function = {"type": "function", "function": {"name": read_text(value, "name", "tool_choice")}}
        return {**options, "tool_choice": function}
    if value.get("type") not in _TOOL_CHOICES:
        raise UsageError(f"tool_choice.type is {value.get('type')!r:.40}; there are tool, {', '.join(_TOOL_CHOICES)}")
    return {**options, "tool_choice": _TOOL_CHOICES[value["type"]]}


def make_answer(request: ModelRequest, completion: Completion) -> JSON:
    """Return the body of an answer."""
    turn = completion.turn
    body = {
        **_make_head(request),
        "content": make_blocks(completion.message),
        **_make_stop_reason(completion),
        "usage": _make_usage(turn),
    }
    return {**body, "prompt_token_ids": turn.prompt_ids, "token_ids": turn.ids} if request.ids else body


def stream_answer(request: ModelRequest, completion: Completion) -> Iterator[bytes]:
    """Yield the same as events, block by block."""
    turn = completion.turn
    started = {**_make_head(request), "content": [], "stop_reason": None, "stop_sequence": None}
    usage = {**_make_usage(turn), "output_tokens": 0}
    yield _encode("message_start", message={**started, "usage": usage})
    for number, block in enumerate(make_blocks(completion.message)):
        empty, deltas = _split_block(block)
        yield _encode("content_block_start", index=number, content_block=empty)
        for delta in deltas:
            yield _encode("content_block_delta", index=number, delta=delta)
        yield _encode("content_block_stop", index=number)
    yield _encode("message_delta", delta=_make_stop_reason(completion), usage={"output_tokens": turn.completion_tokens})
    yield _encode("message_stop")


def _encode(kind: str, **fields: JSON) -> bytes:
    return encode_event({"type": kind, **fields}, kind)


def make_blocks(message: Message) -> list[Block]:
    """Return the model's reasoning, text and calls as blocks."""
    blocks: list[Block] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
    if message.text or not message.tool_calls:
        blocks.append({"type": "text", "text": message.text})
    for call in message.tool_calls or ():
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": _read_arguments(call)})
    return blocks


def _read_arguments(call: ToolCall) -> JSON:
    """Return the arguments; what is not an object is wrapped in one, as for the model."""
    try:
        arguments = decode(call.function.arguments or "{}")
    except JSON_ERRORS:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"unreadable": call.function.arguments}


def _split_block(block: Block) -> tuple[Block, list[Block]]:
    """Return a block as it begins, and the deltas that complete it."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        delta = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": ""}, [delta, {"type": "signature_delta", "signature": ""}]
    arguments = {"type": "input_json_delta", "partial_json": encode(block["input"]).decode()}
    return {**block, "input": {}}, [arguments]


def make_error(reply: ErrorReply) -> JSON:
    """Return the body of an error."""
    kind = _ERROR_TYPES.get(reply.status, "api_error")
    message = f"prompt is too long: {reply.line}" if reply.kind == "context_length_exceeded" else reply.line
    return {"type": "error", "error": {"type": kind, "message": message, "code": reply.kind}, "request_id": None}


def _make_head(request: ModelRequest) -> Mapping[str, JSON]:
    return {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": request.model}


def _make_stop_reason(completion: Completion) -> Block:
    reason = _STOP_REASONS.get(completion.turn.finish_reason, "end_turn")
    called = bool(completion.message.tool_calls) and reason == "end_turn"
    return {"stop_reason": "tool_use" if called else reason, "stop_sequence": None}


def _make_usage(turn: Turn) -> Block:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": turn.prompt_tokens, "output_tokens": turn.completion_tokens, **cached}


PING = _encode("ping")
BLOCK_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "type": {"enum": ["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"]},
        "text": {"type": "string"},
        "input": {"type": ["object", "null"]},
    },
    "required": ["type"],
}
TOOL_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "input_schema": {"type": ["object", "null"]}},
    "required": ["name"],
}
TEXT_OR_BLOCKS: dict[str, JSON] = {"type": ["string", "array"], "items": BLOCK_SCHEMA}
REQUEST_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "model": {"type": ["string", "null"]},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": TEXT_OR_BLOCKS},
                "required": ["role", "content"],
            },
        },
        "system": {"type": ["string", "array", "null"], "items": BLOCK_SCHEMA},
        "tools": {"type": ["array", "null"], "items": TOOL_SCHEMA},
        "tool_choice": {"type": ["object", "null"]},
        **SAMPLING_SCHEMAS,
        "max_tokens": {"type": ["integer", "null"], "minimum": 1},
        **dict.fromkeys(("stream", "return_token_ids"), FLAG_SCHEMA),
    },
    "required": ["messages"],
}
ANSWER_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "type": {"const": "message"},
        "content": {"type": "array", "items": {"type": "object", "required": ["type"]}},
        "stop_reason": {"type": "string"},
    },
    "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
}
ANTHROPIC = WireProtocol(
    "Anthropic's messages",
    read_request,
    make_answer,
    stream_answer,
    make_error,
    PING,
    "error",
    REQUEST_SCHEMA,
    ANSWER_SCHEMA,
    make_error_schema("message", "type", "code"),
)
