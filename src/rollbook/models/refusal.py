"""What a server's refusal means: the table from HTTP status and body to our failures. No I/O here."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

import msgspec

from rollbook.core.json import JSON, decode
from rollbook.errors import ContextFull, RolloutFailed

WHERE = "model"
CONNECT = "connect"
"""The `where` of a connection refused or lost, as against a server that answers badly."""

RETRY_AFTER_LIMIT_S = 60.0
_QUOTE_LIMIT = 500

_AWAY = frozenset({401, 404, 408, 425, 429})
_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "input_too_long"})
_CONTEXT_WORDS = (
    "maximum context length",
    "maximum model length",
    "max_model_len",
    "available context size",
    "context window",
    "context length",
    "context size",
    "prompt is too long",
    "input is too long",
    "prompt too long",
)
_CONTEXT_LIMIT = re.compile(
    r"(?:maximum (?:context|model) length (?:is|of)|max_model_len\b\D{0,24}?) ?(\d+)", re.IGNORECASE
)


def refusal(status: int, retry_after: str | None, raw: bytes) -> RolloutFailed | ContextFull:
    """The exception for an answer whose status is not 200."""
    words = server_words(raw)
    message = f"HTTP {status}: {words}"
    if status >= 500 or status in _AWAY or status < 400:
        return RolloutFailed("model_unavailable", WHERE, message, retry_after_s=retry_after_s(retry_after))
    if status in (400, 413, 422) and is_context_error(raw):
        return ContextFull(words)
    return RolloutFailed("model_rejected", WHERE, message)


def is_context_error(raw: bytes) -> bool:
    """Whether an error body says that the prompt does not fit the model."""
    error = _error_of(raw)
    codes = {str(error.get(field)) for field in ("code", "type")}
    words = server_words(raw).lower()
    return bool(codes & _CONTEXT_CODES) or any(phrase in words for phrase in _CONTEXT_WORDS)


def context_limit(words: str) -> int | None:
    """The context length that a context error names, if it does."""
    found = _CONTEXT_LIMIT.search(words)
    return int(found[1]) if found else None


def server_words(raw: bytes) -> str:
    """The server's own message, on one line, whatever shape it came in.

    >>> server_words(b'{"error": {"message": "no such model"}}'), server_words(b"<h1>Bad</h1>")
    ('no such model', '<h1>Bad</h1>')
    """
    error = _error_of(raw)
    said = error.get("message") or error.get("detail") or error.get("error")
    text = said if isinstance(said, str) else raw.decode(errors="replace") if said is None else str(said)
    return " ".join(text.split())[:_QUOTE_LIMIT] or "no message"


def retry_after_s(header: str | None) -> float | None:
    """The seconds a Retry-After header asks for (a number or an HTTP date), 0 to 60; None if it says nothing."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), RETRY_AFTER_LIMIT_S) if seconds == seconds else None


def bad_completion(message: str) -> RolloutFailed:
    """An answer that is no answer."""
    return RolloutFailed("bad_completion", WHERE, message)


def _error_of(raw: bytes) -> dict[str, JSON]:
    try:
        body = decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    return inner if isinstance(inner, dict) else body
