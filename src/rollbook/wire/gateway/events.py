"""Server-sent events, as the protocols of models stream them."""

from __future__ import annotations

from rollbook.core.json import JSON, encode

DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting\n\n"


def event(value: JSON, name: str | None = None) -> bytes:
    """One event; JSON has no line breaks of its own.

    >>> event({"a": 1}, "ping")
    b'event: ping\\ndata: {"a":1}\\n\\n'
    """
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + encode(value) + b"\n\n"
