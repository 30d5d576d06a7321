"""What the three protocols share: a request in our types, errors, server-sent events. No I/O here.

`WireProtocol` is how one protocol is read and answered. An agent that gets no answer gets a status, a kind for programs
and a line for people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    REFERENCE_PREFIX,
    ContentPart,
    Message,
    decode_part,
    encode,
    read_source,
)
from rollbook.errors import ContextFull, LimitReached, RolloutFailed, Stopped, UsageError
from rollbook.models import Completion
from rollbook.processes import ONE_LINE, join_lines

RETRY_AFTER_S = 1


class ErrorReply(msgspec.Struct, frozen=True):
    """`kind` is ours (a kind of failure, or one of the words below); `retry_after_s` is set where a retry may help."""

    status: int
    kind: str
    message: str
    retry_after_s: int | None = None

    @property
    def line(self) -> str:
        """The message as one line: it may quote a request, or the answer of a model's server."""
        return join_lines(self.message)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the status."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class TooManyCalls(Exception):
    """More calls at once than one rollout may make."""


class RolloutEnded(Exception):
    """This rollout is not, or no longer, recorded."""


def make_error_reply(error: Exception, body_limit: int) -> ErrorReply:
    """The trouble that an exception means; what is not foreseen is our own fault and says so."""
    match error:
        case RolloutFailed():
            wait = None if error.retry_after_s is None else math.ceil(error.retry_after_s)
            return ErrorReply(FAILURE_KINDS[error.kind].http_status, error.kind, error.message, wait)
        case ContextFull():
            return ErrorReply(400, "context_length_exceeded", str(error))
        case LimitReached():
            return ErrorReply(400, "limit_reached", f"{error}: no more calls are answered in this rollout")
        case Stopped():
            return ErrorReply(503, "model_unavailable", str(error))
        case UsageError():
            return ErrorReply(400, "invalid_request", str(error))
        case RolloutEnded():
            return ErrorReply(404, "not_found", "no such rollout, or it has ended")
        case TooManyCalls():
            return ErrorReply(429, "too_many_requests", str(error), RETRY_AFTER_S)
        case TimeoutError():
            return ErrorReply(408, "request_timeout", "the request did not arrive in time")
        case web.HTTPRequestEntityTooLarge():
            return ErrorReply(413, "request_too_large", f"a request of more than {body_limit} bytes")
        case _:
            return ErrorReply(500, "internal_error", f"{type(error).__name__}: {error}")


NUMBER_FIELDS = ("temperature", "top_p")
INTEGER_FIELDS = ("max_tokens", "seed")


class ModelRequest(msgspec.Struct, frozen=True):
    """One question. `extra` is sampling by the names of chat completions: only what the agent set itself.

    `ids`, `logprobs` and `usage` say which parts of the record the agent receives with the answer.
    """

    messages: list[Message]
    model: str = ""
    tools: list[JSON] = []
    extra: dict[str, JSON] = {}
    stream: bool = False
    usage: bool = False
    ids: bool = False
    logprobs: bool = False


@dataclass(frozen=True)
class WireProtocol:
    """A protocol: how it is read (UsageError says what is wrong with a body) and answered, as a body or as events.

    In a stream `keep_alive` is sent while there is nothing else to send, and an error is an event `error_event`. The
    schemas describe what is read and answered.
    """

    title: str
    read: Callable[[dict[str, JSON]], ModelRequest]
    answer: Callable[[ModelRequest, Completion], JSON]
    stream: Callable[[ModelRequest, Completion], Iterator[bytes]]
    error: Callable[[ErrorReply], JSON]
    keep_alive: bytes
    error_event: str | None
    request_schema: dict[str, JSON]
    answer_schema: dict[str, JSON]
    error_schema: dict[str, JSON]


FLAG_SCHEMA: dict[str, JSON] = {"type": ["boolean", "null"]}
SAMPLING_SCHEMAS: dict[str, JSON] = {
    "temperature": {"type": ["number", "null"]},
    "top_p": {"type": ["number", "null"]},
    "seed": {"type": ["integer", "null"]},
}


def make_error_schema(*fields: str) -> dict[str, JSON]:
    """The schema of an error: an object `error` with these fields, one of them a message of one line."""
    error = {"type": "object", "properties": {"message": ONE_LINE}, "required": list(fields)}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}


def check_sampling(extra: dict[str, JSON]) -> dict[str, JSON]:
    """Sampling without what is null; UsageError where a number is none."""
    sampling = {name: value for name, value in extra.items() if value is not None}
    for name in NUMBER_FIELDS:
        if name in sampling and not _is_number(sampling[name]):
            raise UsageError(f"{name} is not a number but {sampling[name]!r:.80}")
    for name in INTEGER_FIELDS:
        if name in sampling and (not isinstance(sampling[name], int) or isinstance(sampling[name], bool)):
            raise UsageError(f"{name} is not a whole number but {sampling[name]!r:.80}")
    if sampling.get("max_tokens", 1) < 1:
        raise UsageError(f"max_tokens is {sampling['max_tokens']}: give at least 1")
    return sampling


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_objects(value: JSON, where: str) -> list[dict[str, JSON]]:
    """A list of objects; UsageError says where it is none."""
    if not isinstance(value, list):
        raise UsageError(f"{where} is not a list")
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise UsageError(f"{where}[{number}] is not an object but {item!r:.80}")
    return value


def read_optional_objects(value: JSON, where: str) -> list[dict[str, JSON]]:
    """A list of objects that may be missing or null."""
    return [] if value is None else read_objects(value, where)


def read_flag(body: Mapping[str, JSON], name: str) -> bool:
    """A flag that may be missing or null; a text such as "false" would count as true, so that it is refused."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name} is neither true nor false but {value!r:.80}")
    return bool(value)


def read_model(body: Mapping[str, JSON]) -> str:
    """The name of the model, which may be missing: any name is answered."""
    return "" if body.get("model") is None else read_text(body, "model", "request")


def read_text(value: Mapping[str, JSON], name: str, where: str) -> str:
    """A field that must be text."""
    text = value.get(name)
    if not isinstance(text, str):
        raise UsageError(f"{where}.{name} is not text")
    return text


def read_media_part(part: Mapping[str, JSON], where: str) -> ContentPart | None:
    """An image or a sound of a conversation; None for other parts. UsageError where it cannot be recorded."""
    if part.get("type") not in ("image_url", "input_audio"):
        return None
    found = dict(part)
    source = read_source(found)
    if source is None:
        raise UsageError(f"{where}: {part['type']} has no URL and no data")
    try:
        inline = decode_part(found)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if inline is None and not source.startswith(("https://", "http://", REFERENCE_PREFIX)):
        raise UsageError(f"{where}: {source[:40]}: give the data, or a URL that the model's server can read")
    return found


def make_text_only_error(kind: JSON, where: str) -> UsageError:
    """The message for clients that send more than text."""
    return UsageError(f"{where}: {kind!r:.40} cannot be recorded exactly here; send text, images or audio")


DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting\n\n"


def encode_event(value: JSON, name: str | None = None) -> bytes:
    """One event; JSON has no line breaks of its own.

    >>> encode_event({"a": 1}, "ping")
    b'event: ping\\ndata: {"a":1}\\n\\n'
    """
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + encode(value) + b"\n\n"
