"""OpenAI's Responses API: a request as messages, tools and sampling; an answer as a response or events. No I/O.

Items are read and written as they are for NeMo Gym. Nothing is stored from one response to the next: the whole
conversation comes with every request, as agents send it that do not let a server store it for them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from itertools import count

import msgspec

from rollbook.core import JSON, Message
from rollbook.errors import UsageError
from rollbook.gateway.chat_completions import ERROR_SCHEMA, ROLES, make_error, read_tools
from rollbook.gateway.protocol import (
    COMMENT,
    FLAG_SCHEMA,
    SAMPLING_SCHEMAS,
    ModelRequest,
    WireProtocol,
    check_sampling,
    encode_event,
    make_text_only_error,
    read_flag,
    read_media_part,
    read_model,
)
from rollbook.models import FOREIGN_ITEM, Completion, make_response, read_create_params

SAMPLING_FIELDS = ("seed", "stop", "top_k", "min_p", "chat_template_kwargs")
"""Fields that the Responses API does not have, and servers of open models accept."""

Item = dict[str, JSON]


def read_request(body: dict[str, JSON]) -> ModelRequest:
    """Read a request."""
    if body.get("conversation"):
        raise UsageError("conversation is not supported here: send the whole conversation as input")
    if body.get("previous_response_id"):
        raise UsageError("previous_response_id is not supported here: send the whole conversation as input")
    params = read_create_params({name: value for name, value in body.items() if name != "stream"}, "request")
    extra = {**params.extra, **{name: body[name] for name in SAMPLING_FIELDS if body.get(name) is not None}}
    extra |= {name: getattr(params, name) for name in ("temperature", "top_p", "max_tokens")}
    if params.seed is not None:
        extra["seed"] = params.seed
    return ModelRequest(
        [_read_plain_message(message, f"input: message {number}") for number, message in enumerate(params.messages)],
        read_model(body),
        read_tools(params.tools),
        check_sampling(extra),
        read_flag(body, "stream"),
        ids=read_flag(body, "return_token_ids"),
    )


def _read_plain_message(message: Message, where: str) -> Message:
    """Return a message that any server accepts; UsageError names what only OpenAI's servers support."""
    for part in message.content if isinstance(message.content, list) else ():
        if part.get("type") == FOREIGN_ITEM:
            raise UsageError(f"{where}: items of type {part['item'].get('type')!r:.40} are not supported here")
        if part.get("type") != "text" and read_media_part(part, where) is None:
            raise make_text_only_error(part.get("type"), where)
    return msgspec.structs.replace(message, role=ROLES[message.role], written=None)


def make_answer(request: ModelRequest, completion: Completion) -> JSON:
    """Return the response."""
    return _make_response(request, completion, secrets.token_hex(12))


def _make_response(request: ModelRequest, completion: Completion, name: str) -> dict[str, JSON]:
    turn = completion.turn
    visible = turn if request.ids else msgspec.structs.replace(turn, prompt_ids=None, ids=None, logprobs=None)
    response = make_response(
        [completion.message],
        [visible],
        name=name,
        model=request.model,
        created=int(time.time()),
        tools=request.tools,
        uncounted=0,
    )
    defaults: Item = {"error": None, "instructions": None, "metadata": {}, "previous_response_id": None}
    sampling = {field: request.extra.get(field) for field in ("temperature", "top_p")}
    limit = {"max_output_tokens": request.extra.get("max_tokens")}
    return {**response, **defaults, **sampling, **limit}


def stream_answer(request: ModelRequest, completion: Completion) -> Iterator[bytes]:
    """Yield the same as events: the response begins, each item is added and done, the response ends."""
    response = _make_response(request, completion, secrets.token_hex(12))
    started = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    numbers = count()

    def event(kind: str, fields: Mapping[str, JSON]) -> bytes:
        return encode_event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    yield event("response.created", {"response": started})
    yield event("response.in_progress", {"response": started})
    for index, item in enumerate(response["output"]):
        for kind, fields in _item_events(item):
            yield event(kind, {"output_index": index, **fields})
    ended = "response.completed" if response["status"] == "completed" else "response.incomplete"
    yield event(ended, {"response": response})


def _item_events(item: Item) -> Iterator[tuple[str, Item]]:
    parts = {"message": _message_events, "function_call": _call_events, "reasoning": _reasoning_events}[item["type"]]
    empty: dict[str, Item] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "reasoning": {"summary": []},
    }
    started = {"status": "in_progress"} if "status" in item else {}
    yield "response.output_item.added", {"item": {**item, **empty[item["type"]], **started}}
    yield from parts(item)
    yield "response.output_item.done", {"item": item}


def _message_events(item: Item) -> Iterator[tuple[str, Item]]:
    for number, part in enumerate(item["content"]):
        position = {"item_id": item.get("id"), "content_index": number}
        yield "response.content_part.added", {**position, "part": {**part, "text": ""}}
        yield "response.output_text.delta", {**position, "delta": part["text"], "logprobs": []}
        yield "response.output_text.done", {**position, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**position, "part": part}


def _call_events(item: Item) -> Iterator[tuple[str, Item]]:
    position = {"item_id": item["id"]}
    yield "response.function_call_arguments.delta", {**position, "delta": item["arguments"]}
    yield "response.function_call_arguments.done", {**position, "name": item["name"], "arguments": item["arguments"]}


def _reasoning_events(item: Item) -> Iterator[tuple[str, Item]]:
    for number, part in enumerate(item["summary"]):
        position = {"item_id": item["id"], "summary_index": number}
        yield "response.reasoning_summary_part.added", {**position, "part": {**part, "text": ""}}
        yield "response.reasoning_summary_text.delta", {**position, "delta": part["text"]}
        yield "response.reasoning_summary_text.done", {**position, "text": part["text"]}
        yield "response.reasoning_summary_part.done", {**position, "part": part}


ITEM_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "type": {"enum": ["message", "reasoning", "function_call", "function_call_output"]},
        "role": {"enum": list(ROLES)},
        "content": {"type": ["string", "array", "null"], "items": {"type": "object"}},
    },
    "required": ["type"],
}
REQUEST_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "model": {"type": ["string", "null"]},
        "input": {"type": ["string", "array"], "minLength": 1, "minItems": 1, "items": ITEM_SCHEMA},
        "instructions": {"type": ["string", "null"]},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}},
        "metadata": {"type": ["object", "null"]},
        **SAMPLING_SCHEMAS,
        "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
        **dict.fromkeys(("stream", "return_token_ids"), FLAG_SCHEMA),
    },
    "required": ["input"],
}
ANSWER_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "object": {"const": "response"},
        "status": {"enum": ["completed", "incomplete"]},
        "output": {"type": "array", "items": {"type": "object", "required": ["type"]}},
    },
    "required": ["id", "object", "status", "output", "usage", "model"],
}
RESPONSES = WireProtocol(
    "OpenAI's responses",
    read_request,
    make_answer,
    stream_answer,
    make_error,
    COMMENT,
    "error",
    REQUEST_SCHEMA,
    ANSWER_SCHEMA,
    ERROR_SCHEMA,
)
