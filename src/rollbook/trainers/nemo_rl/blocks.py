"""Code in a message: what stands between `<code>` and `</code>`.

A `</code>` inside a string literal is text, not the end. A `<code>` inside a block is code, unless it begins a line:
no line of Python does, so it opens the block anew (a model that only spoke of the tag before). What is opened and
never closed goes on to the end of the message: a stop string may have been cut off.
"""

from __future__ import annotations

import re
import textwrap
from typing import NamedTuple

OPEN, CLOSE = "<code>", "</code>"
# Every failing attempt at a string is bounded: an escape is consumed outside of strings too, so that a quote which
# finds no partner on its line is tried once. Time is linear in the message, whatever it holds.
_TOKEN = re.compile(
    r'''
      (?P<text> """(?:\\.|(?!""").)*"""
              | \'\'\'(?:\\.|(?!\'\'\').)*\'\'\'
              | "(?:\\.|[^"\\\n])*"
              | '(?:\\.|[^'\\\n])*'
              | \#[^\n]*?(?=</code>|\n|\Z)
              | \\. )
    | (?P<again> ^[ \t]*<code>)
    | (?P<close> </code>)
    ''',
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


class Found(NamedTuple):
    """The blocks of a message, and what the model went on to say after the last of them."""

    blocks: tuple[str, ...]
    after: str


def find_blocks(message: str) -> Found:
    """All blocks in their order."""
    blocks: list[str] = []
    at = message.find(OPEN)
    after = 0
    while at >= 0:
        code, after = _block(message, at + len(OPEN))
        blocks.append(code)
        at = message.find(OPEN, after)
    return Found(tuple(blocks), message[after:] if blocks else "")


def _block(message: str, start: int) -> tuple[str, int]:
    """The code that begins here, and where the message goes on."""
    for token in _TOKEN.finditer(message, start):
        if token["again"]:
            start = token.end()
        elif token["close"]:
            return straight(message[start : token.start()]), token.end()
    end = message.find(CLOSE, start)
    if end < 0:
        return straight(message[start:]), len(message)
    return straight(message[start:end]), end + len(CLOSE)


def straight(code: str) -> str:
    """Code without the indentation that its place in a message gave it."""
    first, newline, rest = code.partition("\n")
    if first.strip():
        return (first.lstrip(" \t") + newline + rest).rstrip()
    return textwrap.dedent(rest).rstrip()
