"""Cases with a known result: a reader gets something that was made from a random value, and must return that value.

What is expected is known before the reader is called: the value that was written, the answer that was put into a text,
or the result of a rule that is stated here a second time, in other words. It never comes from the code that is tested.
"""

from __future__ import annotations

import json
import random
import string
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

JSONValue: TypeAlias = Any


class Case(NamedTuple):
    """What a reader was given, what it returned, and what it should have returned."""

    given: object
    found: object
    expected: object


MakeCase: TypeAlias = Callable[[random.Random], Case]

LETTERS = string.ascii_letters + "äßé東 \n\"'\\{}[]<>$#.,:;-_/%&0123456789\t"


def draw_text(draw: random.Random, most: int = 20) -> str:
    """Return any text, with the characters that formats have to escape."""
    return "".join(draw.choices(LETTERS, k=draw.randint(0, most)))


def draw_name(draw: random.Random) -> str:
    """Return a name of letters, never empty."""
    return "".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9)))


def draw_number(draw: random.Random) -> int | float:
    """Return a number of any size and sign."""
    return draw.choice(
        (draw.randint(-9, 9), draw.randint(-(10**12), 10**12), draw.uniform(-5, 5), draw.gauss(0, 1) * 10.0**30)
    )


def draw_json(draw: random.Random, depth: int = 2) -> JSONValue:
    """Return a value of JSON."""
    kind = draw.randrange(7 if depth else 5)
    if kind == 5:
        return [draw_json(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    if kind == 6:
        return draw_object(draw, depth)
    return (None, draw.random() < 0.5, draw_number(draw), draw_text(draw), draw.randint(0, 99))[kind]


def draw_object(draw: random.Random, depth: int = 2) -> dict[str, JSONValue]:
    """Return an object of JSON."""
    return {draw_name(draw): draw_json(draw, depth - 1) for _ in range(draw.randint(0, 3))}


def write_record(value: dict[str, JSONValue], indent: int | None = 2) -> bytes:
    """Write an object with its checksum as the format says: the CRC-32 of what precedes the comma before the field."""
    body = json.dumps(value, indent=indent, ensure_ascii=False, separators=(",", ": " if indent else ":")).encode()
    body = body.removesuffix(b"}").rstrip()
    start, end = (b',\n  "crc": "', b'"\n}\n') if indent else (b',"crc":"', b'"}')
    return body + start + b"%08x" % zlib.crc32(body) + end
