"""JSON as it enters and leaves Rollbook: one type for its values, one encoder and one decoder."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

JSON: TypeAlias = Any
"""Any value JSON can hold. An alias, so that signatures say what they mean."""

_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder()

encode = _encoder.encode
decode = _decoder.decode


def encode_line(value: object) -> bytes:
    """Return a value as one line of JSON, newline included."""
    return _encoder.encode(value) + b"\n"


def encode_pretty(value: object) -> bytes:
    """Return a value as indented JSON for files that people open, newline included."""
    return msgspec.json.format(_encoder.encode(value), indent=2) + b"\n"
