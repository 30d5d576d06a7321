"""JSON as it enters and leaves Rollbook: one type for its values, one encoder and one decoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, TypeAlias

import msgspec

JSON: TypeAlias = Any
"""Any value JSON can hold. An alias, so that signatures say what they mean."""

_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder()

encode = _encoder.encode
decode = _decoder.decode

JSON_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What decoding raises for bytes that are not the JSON that was expected; text that is not UTF-8 has its own error."""


def encode_line(value: object) -> bytes:
    """Return a value as one line of JSON, newline included."""
    return _encoder.encode(value) + b"\n"


def encode_pretty(value: object) -> bytes:
    """Return a value as indented JSON for files that people open, newline included."""
    return msgspec.json.format(_encoder.encode(value), indent=2) + b"\n"


def iterate_lines(stream: IO[bytes], limit: int = -1) -> Iterator[tuple[int, int, bytes]]:
    """Yield the lines of a JSON-lines file that are not blank, as (number, offset, line); numbers begin at 1.

    A line of more than `limit` bytes comes in pieces of that size.
    """
    offset = 0
    for number, line in enumerate(iter(lambda: stream.readline(limit), b""), start=1):
        if not line.isspace():
            yield number, offset, line
        offset += len(line)
