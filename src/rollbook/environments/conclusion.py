"""The conclusion of a mathematical text: the expression that it means as its final answer, and comparing two."""

from __future__ import annotations

import re

from rollbook.environments.answers import boxed, equal, extract, last_number, plain
from rollbook.environments.hedges import doubted

LIMIT = 300
"""The longest expression that is read as an answer."""

LINES = 8
"""Where nothing is marked, an answer stands among the last lines."""

LOOKED_AT = 2000
"""How many characters are searched for it: reading on in a line without end would take longer than any deadline."""

_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_MARKED = re.compile(
    r"(?:####|\banswer\b[^\n.:=]{0,60}?(?:\bis(?=n['’]?t\b)|\bis\b|:|=))[ \t*:=]*\n{0,2}[ \t]*"
    r"(?:```[a-z]{0,9}\n[ \t]*)?(\S[^\n]*)",
    re.IGNORECASE,
)
_TAGGED = re.compile(r"<answer>([^<]{1,300})</answer>", re.IGNORECASE)
_REASON = re.compile(r"(?<=[\w$)}])(?:[, ]+(?:since|because)|,\s*not)\b.*", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(
    r"^(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*(?:\(?[A-J]\)|(?:the )?(?:final )?answer(?: is|:))\s*\}|\([A-J]\)\s)"
    r"(?:\\ |[\s~])*(?=\S)",
    re.IGNORECASE,
)
_SEGMENT = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_DELIMITERS = re.compile(r"^(?:\$\$|\$|\\\(|\\\[)\s*(.*?)\s*(?:\$\$|\$|\\\)|\\\])$", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_GAP = re.compile(r"(?<!\\)\\[,;:> ]|\\q?quad|~")
_SPACE = re.compile(r"(?<!\\)\\[!,;:> ]|\\q?quad|\\left|\\right|\\displaystyle|[\s~$]")
_APART = re.compile(r"(?<=\d)\s+(?=\d)(?!\d{3}(?!\d))")
"""Space between two numbers; before three digits it may separate thousands."""
_HEDGE = re.compile(r"\d\s+or\b", re.IGNORECASE)
_OR_NEXT = re.compile(r"[\s,;]*(?:or|and|versus|vs)\b[^$]{0,20}(?:\$|\\\(|\d)", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z]{2,}[ ]+[A-Za-z]{2,}|^[A-Za-z]{2,}\b[^=]*[ ]")


def concluded(text: str) -> str | None:
    r"""The final answer of a text: the last `\boxed{}`, else what is marked as the answer, else the last expression.

    >>> concluded(r"So \boxed{\frac{1}{2}}."), concluded(r"Answer: $\sqrt{2}$."), concluded("It is 3, so 7 in all.")
    ('\\frac{1}{2}', '\\sqrt{2}', '7')
    """
    text = _THOUGHT.sub("", text)
    if (inside := boxed(text)) is not None:
        return bare(inside)
    if tagged := _TAGGED.findall(text):
        return bare(tagged[-1])
    if marked := _MARKED.findall(text):
        return _told(marked[-1][:LOOKED_AT])
    tail = "\n".join(text.strip().splitlines()[-LINES:])[-LOOKED_AT:]
    if (segment := _last_segment(tail)) is not None:
        return segment
    return last_number(tail)


def _told(line: str) -> str | None:
    """What a line says after "the answer is": an expression in dollars, all of it, or the number in a sentence."""
    line = _REASON.sub("", line)
    if (segment := _given_segment(line)) is not None:
        return segment
    told = bare(line)
    if plain(told.rstrip("!")) is not None:
        return told.rstrip("!")
    if _WORDS.search(told) and not _HEDGE.search(told) and (number := extract(f"the answer is {told}")) is not None:
        return number
    return told[:LIMIT] or None


def _given_segment(line: str) -> str | None:
    """The expression in dollars that a line begins with, else its last; the line where it gives a choice."""
    first = _SEGMENT.search(line)
    if first is None:
        return None
    if doubted(line[: first.start()], "") or _OR_NEXT.match(line, first.end()):
        return line.strip()[:LIMIT]
    return _last_segment(first[0] if not line[: first.start()].strip(" *:") else line)


def _last_segment(text: str) -> str | None:
    segments = [next(part for part in found if part) for found in _SEGMENT.findall(text)]
    return bare(segments[-1]) if segments and len(segments[-1]) <= LIMIT else None


def bare(text: str) -> str:
    r"""An expression without dollars, brackets of TeX, emphasis and the full stop around it.

    >>> bare(r"**\(x + 1\)**."), bare(" $5$ ")
    ('x + 1', '5')
    """
    text = text.strip().strip("*").strip().rstrip(".,;?").strip().strip("*").strip()
    match = _DELIMITERS.match(text)
    return match[1] if match and "$" not in match[1] else text


def same(given: str, expected: str) -> bool:
    r"""Whether two final answers mean the same, as text or as mathematics.

    >>> same(r"\text{Tuesday}", "tuesday"), same(r"2\sqrt{2}", r"$\sqrt{8}$"), same("3", "4")
    (True, True, False)
    """
    given, expected = bare(given), bare(expected)
    return _folded(given) == _folded(expected) or equal(_LABEL.sub("", given), expected)


def _folded(text: str) -> str:
    text = _SPACE.sub("", _APART.sub("|", _GAP.sub(" ", _TEXT.sub(r"\1", text)))).casefold()
    return text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").rstrip(".")
