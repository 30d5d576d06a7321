"""Code in an answer: the last fenced block of it that is Python."""

from __future__ import annotations

import re

PYTHON = frozenset({"python", "python3", "py", "python2", "cpython", "pypy", "pypy3"})
DEEPER = 3
"""How much further in than its beginning the end of a block may stand: fences in a docstring stand further in."""

_FENCE = re.compile(
    r"^([ \t]*+)((?:[-*+]|\d{1,9}[.)])[ \t]++)?+"  # in a list, or as the beginning of an item
    r"(`{3,}+|~{3,}+)[ \t]*+([^\s`{]*+)[^\n`]*+$"
)


def last_block(text: str) -> str | None:
    r"""The last fenced block tagged as Python, else the last not tagged; None if there is none. Thoughts do not count.

    A block whose end is missing goes to the end of the text; an empty one is passed over.

    >>> last_block("First\n```python\nx = 1\n```\nthen\n```py\nx = 2\n```\nprints\n```\n2\n```")
    'x = 2\n'
    """
    found: dict[str, str] = {}
    opened, lines = None, list[str]()
    for line in [*text.rpartition("</think>")[2].splitlines(), None]:
        match = _FENCE.match(line) if line is not None else None
        if opened and (line is None or _closes(match, opened)):
            if any(map(str.strip, lines)):
                tag = opened[4].lower()
                found["python" if tag in PYTHON else tag] = "".join(f"{kept}\n" for kept in lines)
            opened = None
        elif opened and line is not None:
            lines.append(_outdented(line, len(opened[1]) + len(opened[2] or "")))
        elif match:
            opened, lines = match, []
    return found.get("python", found.get(""))


def _closes(match: re.Match[str] | None, opened: re.Match[str]) -> bool:
    if match is None or match[2] or match[4] or not match[3].startswith(opened[3]):
        return False
    return len(match[1]) <= len(opened[1]) + len(opened[2] or "") + DEEPER


def _outdented(line: str, width: int) -> str:
    """A line without the indentation of its fence, as far as it has one."""
    return line[min(width, len(line) - len(line.lstrip(" \t"))) :]
