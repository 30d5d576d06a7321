"""Random changes of bytes, from a seed: what a torn write, a bad disk, a careless hand or a hostile model makes."""

from __future__ import annotations

import random
from collections.abc import Sequence

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
