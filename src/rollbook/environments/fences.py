"""Code in an answer: the last fenced block of it that is Python."""

from __future__ import annotations

import re

PYTHON = frozenset({"", "python", "python3", "py", "python2", "cpython", "pypy", "pypy3"})
_FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[ \t]*+([^\s`{]*+)[^\n`]*+$")


def last_block(text: str) -> str | None:
    r"""The last fenced block tagged as Python, or not tagged; None if there is none. Thoughts do not count.

    A block whose end is missing goes to the end of the text; an empty one is passed over.

    >>> last_block("First\n```python\nx = 1\n```\nthen\n```py\nx = 2\n```\nprints\n```text\n2\n```")
    'x = 2\n'
    """
    found, fence, tag, lines = None, "", "", list[str]()
    for line in [*text.rpartition("</think>")[2].splitlines(), None]:
        match = _FENCE.match(line) if line is not None else None
        if fence and (line is None or _closes(match, fence)):
            if tag.lower() in PYTHON and any(map(str.strip, lines)):
                found = "".join(f"{kept}\n" for kept in lines)
            fence = ""
        elif fence and line is not None:
            lines.append(line)
        elif match:
            fence, tag, lines = match[1], match[2], []
    return found


def _closes(match: re.Match[str] | None, fence: str) -> bool:
    return match is not None and match[1].startswith(fence) and not match[2]
