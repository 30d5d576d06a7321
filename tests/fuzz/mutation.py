"""Random changes of bytes, from a seed: what a torn write, a bad disk, a careless hand or a hostile model makes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

TOKENS = [
    b"\0", b"\xff", b"\n", b"\r\n", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"NaN",
    b"Infinity", b"-1", b"1e999", b"9" * 30, b"0x10", b"\xed\xa0\x80", b"\\ud800", "\u202e".encode(), b"\\boxed{",
    b"\\frac{1}{", b"$$", b"<think>", b"</think>", b"####", b"```", b"<answer>", b"and", b"(" * 50, b"[" * 200, b"%",
    b"=", b"'",
]  # fmt: skip


def mutate(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Return the data with one to six random changes."""
    for _ in range(draw.randint(1, 6)):
        data = draw.choice(CHANGES)(data, others, draw)
    return data[: 1 << 16]


def _flip_bit(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def _cut(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    start = draw.randint(0, len(data))
    return data[:start] + data[start + draw.choice((1, 2, 8, len(data))) :]


def _insert(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    at = draw.randint(0, len(data))
    return data[:at] + draw.choice(TOKENS) + data[at:]


def _repeat(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    start = draw.randint(0, len(data))
    part = data[start : start + draw.choice((1, 4, 32))]
    return data[:start] + part * draw.choice((2, 3, 50)) + data[start:]


def _splice(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    other = draw.choice(others)
    return data[: draw.randint(0, len(data))] + other[draw.randint(0, len(other)) :]


CHANGES = [_flip_bit, _flip_bit, _cut, _insert, _insert, _repeat, _splice]

VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 10**12, 1 << 63, 1 << 70, 0.5, -0.0, 1e300, "", "all", "0", "auto", "../x", "5%",
    "\u202e", "profile:x", "in=1,out=2", [], [[]], [0], [""], {}, {"": 0}, {"a": None},
]  # fmt: skip


def mutate_values(data: bytes, draw: random.Random) -> bytes:
    """Return JSON text with one to three of its values, at any depth, replaced, repeated or removed."""
    value = json.loads(data)
    for _ in range(draw.randint(1, 3)):
        owner, key = _choose_place(value, draw)
        if owner is None:
            break
        kind = draw.randrange(4)
        if kind == 0:
            del owner[key]
        elif kind == 1 and isinstance(owner, list):
            owner.insert(key, copy.deepcopy(owner[key]))
        elif kind == 2 and isinstance(owner[key], int) and not isinstance(owner[key], bool):
            owner[key] += draw.choice((-1, 1, 7, -7))
        else:
            owner[key] = copy.deepcopy(draw.choice(VALUES))  # what it holds may be changed next
    return json.dumps(value).encode()


def _choose_place(value: Any, draw: random.Random) -> tuple[Any, Any]:
    """Return a list or object inside a value, and one of its places; None if there is none."""
    places: list[tuple[Any, Any]] = []
    queue = [value]
    for owner in queue:
        keys = list(owner) if isinstance(owner, dict) else range(len(owner)) if isinstance(owner, list) else ()
        places += [(owner, key) for key in keys]
        queue += [owner[key] for key in keys]
    return draw.choice(places) if places else (None, None)
