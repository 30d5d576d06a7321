"""Translate a server's errors and inconsistent answers into failures, by HTTP status, body and token counts.

No I/O. Exact tokens must add up, token for token, or the call has failed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from email.utils import parsedate_to_datetime
from math import isfinite

import msgspec

from rollbook.core import JSON, JSON_ERRORS, decode
from rollbook.errors import ContextFull, RolloutFailed

WHERE = "model"
CONNECT = "connect"
"""The `where` of a connection refused or lost, as opposed to a server that answers badly."""

RETRY_AFTER_LIMIT_S = 60.0
_QUOTE_LIMIT = 500

_UNAVAILABLE = frozenset({401, 404, 408, 425, 429})
_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "input_too_long"})
_CONTEXT_PHRASES = (
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
    "exceed context limit",
)
_CONTEXT_LIMIT = re.compile(
    r"(?:maximum (?:context|model) length (?:is|of)|max_model_len\b\D{0,24}?) ?(\d+)", re.IGNORECASE
)


REFUSED_STATUSES = frozenset({401, 403, 404})
"""What an endpoint answers to every call with a wrong key, path or model name."""

KEY_STATUSES = frozenset({401, 403})
REDIRECTS = frozenset({301, 302, 303, 307, 308})


def make_http_error(
    status: int, retry_after: str | None, raw: bytes, key_advice: str = ""
) -> RolloutFailed | ContextFull:
    """Return the exception for an answer whose status is not 200; `key_advice` is what to do about a wrong key."""
    text = shorten_page(read_server_message(raw))
    advice = BILLING if is_out_of_credit(status, raw) else advise_on_status(status, text, key_advice)
    message = f"HTTP {status}: {text}{'; ' if advice else ''}{advice}"
    if status >= 500 or status in _UNAVAILABLE or status < 400:
        retry_after_s = parse_retry_after(retry_after)
        return RolloutFailed("model_unavailable", WHERE, message, retry_after_s=retry_after_s, status=status)
    if status in (400, 413, 422) and is_context_error(raw):
        return ContextFull(text)
    return RolloutFailed("model_rejected", WHERE, message, status=status)


BILLING = "the account has no credit or quota left: check its billing at the provider"


def is_out_of_credit(status: int, raw: bytes) -> bool:
    """Return whether an answer means that the account is used up: no later call would be answered.

    >>> is_out_of_credit(429, b'{"error": {"code": "insufficient_quota"}}'), is_out_of_credit(429, b"slow down")
    (True, False)
    """
    return status == 402 or (status == 429 and b"insufficient_quota" in raw)


def advise_on_status(status: int, text: str, key_advice: str) -> str:
    """Return what a user can do about an answer with this status; empty where the status alone does not tell.

    >>> advise_on_status(404, "The model gpt-0 does not exist", "")
    'check the model name (--model-name)'
    >>> advise_on_status(404, "Not Found", "")
    'check the path of the URL: most endpoints end in /v1'
    """
    if status in KEY_STATUSES:
        return key_advice
    if status == 404 and "model" in text.lower():
        return "check the model name (--model-name)"
    if status in (404, 405):
        return "check the path of the URL: most endpoints end in /v1"
    if status in REDIRECTS:
        return "the endpoint is elsewhere: give its new URL with -m"
    return ""


def shorten_page(text: str) -> str:
    """Return text as it is, but an HTML page as its title.

    >>> shorten_page("<html><head><title>Not here</title></head><body>...")
    'an HTML page, "Not here"'
    """
    if not text.lstrip()[:32].lower().startswith(("<!doctype html", "<html")):
        return text
    title = _TITLE.search(text)
    return f'an HTML page, "{title[1].strip()[:80]}"' if title else "an HTML page"


_TITLE = re.compile(r"<title[^>]*>([^<]+)</title>", re.IGNORECASE)


def is_context_error(raw: bytes) -> bool:
    """Whether an error body means that the prompt does not fit the model."""
    error = _read_error_object(raw)
    codes = {str(error.get(field)) for field in ("code", "type")}
    text = read_server_message(raw).lower()
    return bool(codes & _CONTEXT_CODES) or any(phrase in text for phrase in _CONTEXT_PHRASES)


MAX_COMPLETION_TOKENS = "max_completion_tokens"
OTHER_NAMES = {"max_tokens": MAX_COMPLETION_TOKENS, MAX_COMPLETION_TOKENS: "max_tokens"}
"""Parameters that have two names, of which some endpoints take only one."""

_REFUSAL_CODES = frozenset({"unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden"})
_REFUSAL = re.compile(
    r"unsupported|not support|n't support|unknown|unrecogni[sz]ed|unexpected|not permitted|not allowed|extra_forbidden"
    r"|cannot (?:both )?be (?:specified|used|set)|deprecated|no longer|not accept|not available|\binstead\b",
    re.IGNORECASE,
)
_ADVICE = re.compile(r"\b(?:use|requires?|required|missing|expects?|expected)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.;!?])\s+|\n")
_VALUE = re.compile(
    r"unsupported value|too (?:large|high|big|small)|at (?:most|least)|must be|less than", re.IGNORECASE
)


class RefusedParameter(msgspec.Struct, frozen=True):
    """A parameter that an endpoint does not take; with `value`, it may take another value of it."""

    name: str
    value: bool = False


def find_refused_parameter(raw: bytes, sent: Collection[str]) -> RefusedParameter | None:
    """Return which of the parameters that were sent an error body refuses, if it is about one.

    Known are OpenAI's structured errors, and the text of vLLM, SGLang, Azure, Gemini, OpenRouter, Together, Anthropic.

    >>> find_refused_parameter(b'{"detail": "Unsupported parameter(s): seed"}', ["seed", "top_p"])
    RefusedParameter(name='seed', value=False)
    """
    if is_context_error(raw):
        return None
    error, text = _read_error_object(raw), _read_whole_text(raw)
    param = str(error.get("param")).rpartition(".")[2]
    if param in sent and (error.get("code") in _REFUSAL_CODES or _REFUSAL.search(text)):
        return RefusedParameter(param, bool(_VALUE.search(text)))
    for sentence in _SENTENCE_END.split(text):
        named = [name for name in sent if _names_parameter(sentence, name)] if _REFUSAL.search(sentence) else []
        if named:
            # Of several that exclude each other, the last one is the easiest to do without: top_p next to temperature.
            return RefusedParameter(max(named, key=sentence.rfind), bool(_VALUE.search(sentence)))
    wanted = (name for name in sent if _ADVICE.search(text) and _names_parameter(text, OTHER_NAMES.get(name, "")))
    return next((RefusedParameter(name) for name in wanted if name not in text), None)


def find_named_parameter(raw: bytes, sent: Collection[str]) -> str | None:
    """Return the first parameter that an error body names in any way, if it names one that was sent.

    >>> find_named_parameter(b'{"error": "only temperature 1 is possible"}', ["seed", "temperature"])
    'temperature'
    """
    text = _read_whole_text(raw)
    named = [name for name in sent if _names_parameter(text, name) or (name == "temperature" and name in text)]
    return min(named, key=text.find, default=None)


def _names_parameter(sentence: str, name: str) -> bool:
    """Return whether a sentence names a parameter; words such as stop and seed only where they are marked as one."""
    if not name:
        return False
    word = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
    if "_" in name:
        return re.search(word, sentence) is not None
    marks = rf"[`'\"]{name}[`'\"]|^{word}|(?:parameters?|params?|arguments?|fields?|inputs?)(?:\(s\))?:? {word}"
    return re.search(marks, sentence) is not None


def _read_whole_text(raw: bytes) -> str:
    """Return everything that an error says, with what a proxy quotes of the server behind it."""
    error = _read_error_object(raw)
    metadata = error.get("metadata")
    quoted = metadata.get("raw") if isinstance(metadata, dict) else None
    texts = [error.get("message"), error.get("detail"), error.get("error"), quoted]
    known = [text if isinstance(text, str) else str(text) for text in texts if text]
    return "\n".join(known) or raw.decode(errors="replace")


def read_context_limit(message: str) -> int | None:
    """Return the context length that a context error names, if it does."""
    match = _CONTEXT_LIMIT.search(message)
    return int(match[1]) if match else None


def read_server_message(raw: bytes) -> str:
    """Return the server's own message, on one line, whatever its form.

    >>> read_server_message(b'{"error": {"message": "no such model"}}'), read_server_message(b"<h1>Bad</h1>")
    ('no such model', '<h1>Bad</h1>')
    """
    error = _read_error_object(raw)
    message = error.get("message") or error.get("detail") or error.get("error")
    text = message if isinstance(message, str) else raw.decode(errors="replace") if message is None else str(message)
    return " ".join(text.split())[:_QUOTE_LIMIT] or "no message"


def parse_retry_after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header (a number or an HTTP date), 0 to 60; None if it has none."""
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


def make_bad_completion(message: str) -> RolloutFailed:
    """Return the failure for an answer that is unusable."""
    return RolloutFailed("bad_completion", WHERE, message)


def _read_error_object(raw: bytes) -> dict[str, JSON]:
    try:
        body = decode(raw)
    except JSON_ERRORS:
        return {}
    if isinstance(body, list) and body:
        body = body[0]  # Gemini's
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    return inner if isinstance(inner, dict) else body


MINUS_INFINITY = -9999.0
"""What vLLM writes for -inf, which JSON cannot hold. No sampled token is that unlikely."""


def check_logprobs(
    prompt_ids: Sequence[int],
    ids: Sequence[int],
    logprobs: Sequence[float | None],
    *,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
) -> list[float]:
    """Return the logprobs, one finite number for each id; RolloutFailed if ids, logprobs and usage disagree."""
    if len(ids) != len(logprobs):
        raise _mismatch(f"{len(ids)} ids came with {len(logprobs)} logprobs")
    if completion_tokens is not None and completion_tokens != len(ids):
        raise _mismatch(f"{len(ids)} ids came, but usage counts {completion_tokens} completion tokens")
    if prompt_tokens is not None and prompt_tokens != len(prompt_ids):
        raise _mismatch(f"{len(prompt_ids)} prompt ids came, but usage counts {prompt_tokens} prompt tokens")
    return check_finite_logprobs(logprobs)


def check_finite_logprobs(logprobs: Sequence[float | None]) -> list[float]:
    """Return the same logprobs; RolloutFailed if one of them is null, infinite or not a number."""
    numbers = [p for p in logprobs if p is not None and isfinite(p) and p > MINUS_INFINITY]
    if len(numbers) != len(logprobs):
        index = next(i for i, p in enumerate(logprobs) if p is None or not isfinite(p) or p <= MINUS_INFINITY)
        raise RolloutFailed("nonfinite_logprobs", WHERE, f"the logprob of token {index} is {logprobs[index]}")
    return numbers


def _mismatch(message: str) -> RolloutFailed:
    return RolloutFailed("token_mismatch", WHERE, message)
