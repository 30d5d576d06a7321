"""What an agent is told when no answer came: a status, a word for programs, a line for people."""

from __future__ import annotations

import math

import msgspec
from aiohttp import web

from rollbook.errors import ContextFull, LimitReached, RolloutFailed, Stopped, UsageError

AGAIN_S = 1
_STATUS = {"model_unavailable": 503, "model_timeout": 504, "model_rejected": 400}


class Trouble(msgspec.Struct, frozen=True):
    """`kind` is ours (a kind of failure, or one of the words below); `retry_after_s` where trying again may help."""

    status: int
    kind: str
    words: str
    retry_after_s: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the status."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class Busy(Exception):
    """More calls at once than one rollout may make."""


class Ended(Exception):
    """Nobody records this rollout (any more)."""


def trouble_of(error: Exception, body_limit: int) -> Trouble:
    """The trouble that an exception means; what is not foreseen is our own fault and says so."""
    match error:
        case RolloutFailed():
            wait = None if error.retry_after_s is None else math.ceil(error.retry_after_s)
            return Trouble(_STATUS.get(error.kind, 502), error.kind, error.message, wait)
        case ContextFull():
            return Trouble(400, "context_length_exceeded", str(error))
        case LimitReached():
            return Trouble(400, "limit_reached", f"{error}: no more calls are answered in this rollout")
        case Stopped():
            return Trouble(503, "model_unavailable", str(error))
        case UsageError():
            return Trouble(400, "invalid_request", str(error))
        case Ended():
            return Trouble(404, "not_found", "no such rollout, or it has ended")
        case Busy():
            return Trouble(429, "too_many_requests", str(error), AGAIN_S)
        case TimeoutError():
            return Trouble(408, "request_timeout", "the request did not come in time")
        case web.HTTPRequestEntityTooLarge():
            return Trouble(413, "request_too_large", f"a request of more than {body_limit} bytes")
        case _:
            return Trouble(500, "internal_error", f"{type(error).__name__}: {error}")
