"""Extract the final answer from a model's text: a number, an expression, a fenced block of code."""

from __future__ import annotations

import re

from rollbook.environments.answers.comparison import (
    FRACTION,
    MATH_LIMIT,
    MIXED,
    NUMBER,
    canonicalize,
    continues_number,
    find_rejection,
    is_doubted,
    parse_number,
    strip_delimiters,
)

_MINUS = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "\u202f": " "})
_NUMBER = re.compile(rf"(?<![\w.])(?:{NUMBER})(?:[eE][-+]?\d{{1,3}}(?!\w))?(?:\s*/\s*\d+(?:\.\d+)?)?\s*%?")
_MINUEND = re.compile(r"(?:[\d)%]|(?<![^\W\d_])[^\W\d_])$")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(\{|-?\d[\d,.]*)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*(\S[^\n]*)")
_STATED = re.compile(r"\banswer\b[^\n.]{0,120}?(?:\bis(?=n['’]?t\b)|\bis\b|:|=)([^\n]*(?:\n\s*[^\n]*)?)", re.IGNORECASE)
_SUM_BEFORE = re.compile(r"^[\s:*_(\\$]*(?:[-+*/×÷().,$€£%\d\s]|\\times|\\cdot|\\div)+=\s*")
_NEGATIVE = re.compile(r"\b(?:negative|minus)\s+(?=[$€£]?\d)", re.IGNORECASE)
_TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL | re.IGNORECASE)

BOXES_LIMIT = 9
"""Unclosed boxes are skipped, but only this many."""


def strip_thinking(text: str) -> str:
    """Return a text without the model's thoughts: what follows the last `</think>`.

    >>> strip_thinking("<think>Hm</think>Paris"), strip_thinking("Paris")
    ('Paris', 'Paris')
    """
    return text.rpartition("</think>")[2]


def find_tagged(text: str) -> list[str]:
    """Return the contents of all `<answer>` tags, in order; of nested tags only those of the innermost.

    >>> find_tagged("<answer>a</answer> or <Answer><answer>b</answer></Answer>")
    ['a', 'b']
    """
    return _TAGGED.findall(text)


def extract_answer(text: str) -> str | None:
    r"""Return the final answer: the last `\boxed{}`, else `#### 7`, else "the answer is 7", else the last number.

    >>> extract_answer("2 + 3 = 5, so the answer is **$1,250** a year."), extract_answer("Hm.")
    ('1250', None)
    >>> extract_answer(r"Thus \boxed{\sqrt{2}}.")
    '\\sqrt{2}'
    """
    text = text.translate(_MINUS)
    if (inside := find_boxed(text)) is not None:
        return _read_marked_answer(inside)
    for marker, read in ((_HASHES, _read_marked_answer), (_STATED, _read_stated_number)):
        marked = marker.findall(text)
        # Outside a box an exclamation mark ends a sentence.
        if marked and (answer := read(marked[-1].rstrip("!* "))) is not None:
            return answer
    return find_last_number(text)


def find_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}`, braces balanced; None if there is none.

    >>> find_boxed(r"\boxed{1} or rather \boxed{\frac{1}{2}} and then \boxed{3")
    '\\frac{1}{2}'
    """
    for match in list(_BOXED.finditer(text))[:-BOXES_LIMIT:-1]:
        inside = _read_balanced_braces(text, match.end()) if match[1] == "{" else match[1].rstrip(".,")
        if inside is not None and inside.strip():
            return inside.strip()
    return None


def _read_balanced_braces(text: str, start: int) -> str | None:
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()]
    return None


def find_last_number(text: str) -> str | None:
    """Return the last number of a text in canonical form; None if there is none.

    >>> find_last_number("from 3 - 5 = -2 to 1,000.50 dollars")
    '1000.5'
    """
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return None
    if reason := find_rejection(text[: numbers[-1].start()]):
        return f"{reason}{numbers[-1][0]}".strip()
    return canonicalize(_with_sign(text, numbers[-1]))


def _read_stated_number(text: str) -> str | None:
    """Return the number that a sentence gives as the answer; the sentence itself if it also retracts it."""
    text = _NEGATIVE.sub("-", _SUM_BEFORE.sub("", text))
    number = MIXED.search(text) or FRACTION.search(text) or _NUMBER.search(text)
    if not number:
        return None
    if is_doubted(text[: number.start()], text[number.end() :]):
        return _read_stated_number(text.rpartition("=")[2]) if "=" in text else text.strip()
    return canonicalize(_with_sign(text, number))


def _with_sign(text: str, number: re.Match[str]) -> str:
    """Return a number with its minus sign, unless that sign is a subtraction."""
    before = text[: number.start()].rstrip()
    before = re.sub(r"\\?[$€£]\s*$", "", before).rstrip()
    if not before.endswith("-"):
        return number[0]
    return number[0] if _MINUEND.search(before[:-1].rstrip()) else f"-{number[0]}"


def _read_marked_answer(text: str) -> str | None:
    """Read a marked answer: a number in canonical form, mathematics unchanged, a sentence as its last number."""
    if parse_number(text) is not None:
        return canonicalize(text)
    if "\\" in text or re.search(r"[\^=+*<>\[\]()]", text) or not re.search(r"\d", text):
        return text.strip().strip("*").strip() or None
    certain = not is_doubted(text) and not any(
        continues_number(text[number.end() :]) for number in _NUMBER.finditer(text[:MATH_LIMIT])
    )
    return find_last_number(text) if certain and re.search(r"[A-Za-z]{2}\s", text) else text.strip()


EXPRESSION_CHARS = 300
"""The longest expression that is read as an answer."""

LAST_LINES = 8
"""Where no answer is marked, it is looked for in this many last lines."""

SEARCHED_CHARS = 2000
"""How many characters are searched for it: an endless line would take longer than any deadline."""

_MARKED = re.compile(
    r"(?:####|\banswer\b[^\n.:=]{0,60}?(?:\bis(?=n['’]?t\b)|\bis\b|:|=))[ \t*:=]*\n{0,2}[ \t]*"
    r"(?:```[a-z]{0,9}\n[ \t]*)?(\S[^\n]*)",
    re.IGNORECASE,
)
_REASON = re.compile(r"(?<=[\w$)}])(?:[, ]+(?:since|because)|,\s*not)\b.*", re.IGNORECASE | re.DOTALL)
_SEGMENT = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_HEDGE = re.compile(r"\d\s+or\b", re.IGNORECASE)
_OR_NEXT = re.compile(r"[\s,;]*(?:or|and|versus|vs)\b[^$]{0,20}(?:\$|\\\(|\d)", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z]{2,}[ ]+[A-Za-z]{2,}|^[A-Za-z]{2,}\b[^=]*[ ]")


def extract_math_answer(text: str, *, marked_only: bool = False) -> str | None:
    r"""Return the final answer of a text: the last `\boxed{}`, else a marked answer, else the last expression.

    With `marked_only`, an expression that nothing marks as the answer is none.

    >>> extract_math_answer(r"So \boxed{\frac{1}{2}}."), extract_math_answer(r"Answer: $\sqrt{2}$.")
    ('\\frac{1}{2}', '\\sqrt{2}')
    >>> extract_math_answer("It is 3, so 7 in all.")
    '7'
    """
    text = strip_thinking(text)
    if (inside := find_boxed(text)) is not None:
        return strip_delimiters(inside)
    if tagged := [t for t in find_tagged(text) if 0 < len(t) <= EXPRESSION_CHARS and "<" not in t]:
        return strip_delimiters(tagged[-1])
    if marked := _MARKED.findall(text):
        return _read_marked_line(marked[-1][:SEARCHED_CHARS])
    if marked_only:
        return None
    tail = "\n".join(text.strip().splitlines()[-LAST_LINES:])[-SEARCHED_CHARS:]
    if (segment := _read_last_segment(tail)) is not None:
        return segment
    return find_last_number(tail)


def _read_marked_line(line: str) -> str | None:
    """Read the text after "the answer is": an expression in dollar signs, the number in a sentence, or all of it."""
    line = _REASON.sub("", line)
    if (segment := _read_given_segment(line)) is not None:
        return segment
    line = strip_delimiters(line)
    if parse_number(line.rstrip("!")) is not None:
        return line.rstrip("!")
    is_sentence = _WORDS.search(line) and not _HEDGE.search(line)
    if is_sentence and (number := extract_answer(f"the answer is {line}")) is not None:
        return number
    return line[:EXPRESSION_CHARS] or None


def _read_given_segment(line: str) -> str | None:
    """Return the expression in dollar signs that a line begins with, else its last; the line if it names several."""
    first = _SEGMENT.search(line)
    if first is None:
        return None
    if is_doubted(line[: first.start()], "") or _OR_NEXT.match(line, first.end()):
        return line.strip()[:EXPRESSION_CHARS]
    return _read_last_segment(first[0] if not line[: first.start()].strip(" *:") else line)


def _read_last_segment(text: str) -> str | None:
    segments = [next(part for part in groups if part) for groups in _SEGMENT.findall(text)]
    return strip_delimiters(segments[-1]) if segments and len(segments[-1]) <= EXPRESSION_CHARS else None


PYTHON_TAGS = frozenset({"python", "python3", "py", "python2", "cpython", "pypy", "pypy3"})
EXTRA_INDENT = 3
"""How much deeper than its first line the end of a block may be indented: fences in a docstring are deeper."""

_FENCE = re.compile(
    r"^([ \t]*+)((?:[-*+]|\d{1,9}[.)])[ \t]++)?+"  # in a list, or as the beginning of an item
    r"(`{3,}+|~{3,}+)[ \t]*+([^\s`{]*+)[^\n`]*+$"
)


def last_block(text: str) -> str | None:
    r"""Return the last fenced block tagged as Python, else the last untagged one, else None. Thoughts do not count.

    A block whose end is missing goes to the end of the text; an empty one is skipped.

    >>> last_block("First\n```python\nx = 1\n```\nthen\n```py\nx = 2\n```\nprints\n```\n2\n```")
    'x = 2\n'
    """
    blocks: dict[str, str] = {}
    opened, lines = None, list[str]()
    for line in [*strip_thinking(text).splitlines(), None]:
        match = _FENCE.match(line) if line is not None else None
        if opened and (line is None or _closes_block(match, opened)):
            if any(map(str.strip, lines)):
                tag = opened[4].lower()
                blocks["python" if tag in PYTHON_TAGS else tag] = "".join(f"{part}\n" for part in lines)
            opened = None
        elif opened and line is not None:
            lines.append(_outdent(line, len(opened[1]) + len(opened[2] or "")))
        elif match:
            opened, lines = match, []
    return blocks.get("python", blocks.get(""))


def _closes_block(match: re.Match[str] | None, opened: re.Match[str]) -> bool:
    if match is None or match[2] or match[4] or not match[3].startswith(opened[3]):
        return False
    return len(match[1]) <= len(opened[1]) + len(opened[2] or "") + EXTRA_INDENT


def _outdent(line: str, width: int) -> str:
    """Remove the indentation of the fence from a line, as far as the line has one."""
    return line[min(width, len(line) - len(line.lstrip(" \t"))) :]
