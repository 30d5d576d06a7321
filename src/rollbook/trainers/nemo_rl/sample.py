"""What one sample of a batch asks for: its code, and the limits and session that its metadata name."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from math import inf
from numbers import Real

import msgspec

from rollbook.trainers.nemo_rl.blocks import find_blocks
from rollbook.trainers.nemo_rl.config import MIB, Config

CODE_MOST_CHARS = 1 << 20
BLOCKS_MOST = 16
ID_MOST_CHARS = 256


class Refused(Exception):
    """What this sample asks for cannot be had: an error observation of its own, nothing was run."""


class Asked(msgspec.Struct, frozen=True):
    """Code to be run in a session."""

    session_id: str
    turn: int | None
    """How many turns the session has had; None when the metadata do not tell."""
    blocks: tuple[str, ...]
    seconds: float
    memory_mb: int
    working_dir: str | None = None


class Said(msgspec.Struct, frozen=True):
    """The last message: its code, and what came after it."""

    blocks: tuple[str, ...]
    after: str


def said(log: object) -> Said:
    """The blocks of the last message of a log."""
    last = log[-1] if isinstance(log, Sequence) and not isinstance(log, str) and log else None
    content = last.get("content") if isinstance(last, Mapping) else None
    if not isinstance(content, str):
        raise Refused("the message log does not end with a message whose content is text")
    if len(content) > CODE_MOST_CHARS:
        raise Refused(f"the message has more than {CODE_MOST_CHARS} characters")
    blocks, after = find_blocks(content)
    if len(blocks) > BLOCKS_MOST:
        raise Refused(f"the message has {len(blocks)} code blocks; at most {BLOCKS_MOST} are run")
    return Said(blocks, after)


def asked(blocks: tuple[str, ...], metadata: object, config: Config) -> Asked:
    """The limits and the session for this code: the sample's own before the environment's."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise Refused(f"metadata is a {type(metadata).__name__}, not a dictionary")
    given = dict(metadata or {})
    if given.get("context"):
        raise Refused("metadata context: variables live in the session; set them by code in a first message")
    seconds = limit(given, "timeout_seconds", config.default_timeout_seconds, config.max_timeout_seconds)
    memory = limit(given, "memory_limit_bytes", config.default_memory_limit_bytes, config.max_memory_limit_bytes)
    return Asked(
        session_id=session_id(given),
        turn=turn(given),
        blocks=blocks,
        seconds=float(seconds),
        memory_mb=-int(-memory // MIB),
        working_dir=working_dir(given),
    )


def limit(given: Mapping[str, object], name: str, default: float, most: float) -> float:
    """A sample's own limit: a number above 0 and no higher than the ceiling; the default where it has none."""
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Refused(f"metadata {name}={shown(value)}: give a number")
    number = as_float(value)
    if not 0 < number <= most:
        raise Refused(f"metadata {name}={shown(value)}: give a number above 0 and at most {most}")
    return number


def as_float(value: Real) -> float:
    """A number as a float; one too large for that is infinite."""
    try:
        return float(value)
    except OverflowError:
        return inf


def session_id(given: Mapping[str, object]) -> str:
    """The id that a session goes by: the sample's, or a new one."""
    value = given.get("session_id")
    if value is None:
        return uuid.uuid4().hex
    if isinstance(value, bool) or not isinstance(value, str | int) or not 0 < len(str(value)) <= ID_MOST_CHARS:
        raise Refused(f"metadata session_id={shown(value)}: give a text of 1 to {ID_MOST_CHARS} characters")
    return str(value)


def turn(given: Mapping[str, object]) -> int | None:
    """How many turns the sample says its session has had."""
    value = given.get("session_turn")
    if value is None or (type(value) is int and value >= 0):
        return value
    raise Refused(f"metadata session_turn={shown(value)}: it is the environment's own, hand it back as it was")


def working_dir(given: Mapping[str, object]) -> str | None:
    """The folder of the host that a session works in."""
    value = given.get("working_dir")
    if value is None or isinstance(value, str):
        return value or None
    raise Refused(f"metadata working_dir={shown(value)}: give a path as text")


def shown(value: object) -> str:
    """A value as far as an error message wants it; repr itself may fail on a huge number."""
    try:
        text = repr(value)
    except ValueError:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:60]}..."
