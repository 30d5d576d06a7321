"""A request of an agent in our words, whichever protocol it came in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from rollbook.core.json import JSON
from rollbook.core.message import Message
from rollbook.errors import UsageError
from rollbook.models.model import Completion
from rollbook.wire.gateway.trouble import Trouble

NUMBERS = ("temperature", "top_p")
WHOLE = ("max_tokens", "seed")


class Asked(msgspec.Struct, frozen=True):
    """One question. `extra` is sampling by the names of chat completions: only what the agent said itself.

    `ids`, `logprobs` and `usage` say what of the record the agent wants to see beside the answer.
    """

    messages: list[Message]
    model: str = ""
    tools: list[JSON] = []
    extra: dict[str, JSON] = {}
    stream: bool = False
    usage: bool = False
    ids: bool = False
    logprobs: bool = False


class Answering(Protocol):
    """An answer in the words of a protocol."""

    def __call__(self, asked: Asked, completion: Completion) -> JSON:
        """The body."""


class Streaming(Protocol):
    """An answer as events."""

    def __call__(self, asked: Asked, completion: Completion) -> Iterator[bytes]:
        """All of them, in their order."""
        ...


class Reading(Protocol):
    """A body as a request; UsageError says what is wrong with it."""

    def __call__(self, body: dict[str, JSON]) -> Asked:
        """The request."""
        ...


class Complaining(Protocol):
    """Something that went wrong, in the words of a protocol."""

    def __call__(self, trouble: Trouble) -> JSON:
        """The body."""


@dataclass(frozen=True)
class Dialect:
    """A protocol: how it is read and answered. In a stream `waiting` is sent while there is nothing else to send, and
    an error is an event of the name `error_event`.
    """

    read: Reading
    answer: Answering
    stream: Streaming
    error: Complaining
    waiting: bytes
    error_event: str | None


def checked(extra: dict[str, JSON]) -> dict[str, JSON]:
    """Sampling without what is null; UsageError where a number is none."""
    given = {name: value for name, value in extra.items() if value is not None}
    for name in NUMBERS:
        if name in given and not _number(given[name]):
            raise UsageError(f"{name} is no number but {given[name]!r:.80}")
    for name in WHOLE:
        if name in given and (not isinstance(given[name], int) or isinstance(given[name], bool)):
            raise UsageError(f"{name} is no whole number but {given[name]!r:.80}")
    if given.get("max_tokens", 1) < 1:
        raise UsageError(f"max_tokens is {given['max_tokens']}: give at least 1")
    return given


def _number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def objects(value: JSON, where: str) -> list[dict[str, JSON]]:
    """A list of objects; UsageError says where it is none."""
    if not isinstance(value, list):
        raise UsageError(f"{where} is no list")
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise UsageError(f"{where}[{number}] is no object but {item!r:.80}")
    return value


def word(value: Mapping[str, JSON], name: str, where: str) -> str:
    """A field that must be text."""
    found = value.get(name)
    if not isinstance(found, str):
        raise UsageError(f"{where}.{name} is no text")
    return found


def only_text(kind: JSON, where: str) -> UsageError:
    """What is said to whoever sends more than text."""
    return UsageError(f"{where}: {kind!r:.40} cannot be recorded exactly here; send text")
