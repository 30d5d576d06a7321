"""Final answers in free text: finding the one that was meant, and telling whether two mean the same."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import comb

from rollbook.environments.hedges import MOST, alternatives, doubted, goes_on, is_list, rejected, unfinished
from rollbook.environments.spelling import tidy
from rollbook.environments.units import TIMES, is_unit, measure

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_MINUS = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "\u202f": " "})

_SIMPLE = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?")
_PLAIN = re.compile(rf"([-+]?)\s*({NUMBER})(?:[eE]([-+]?\d{{1,3}}))?(?:\s*/\s*({NUMBER}))?")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*(-?[\d.,]+)\s*\}")
_MIXED = re.compile(r"(?<![\d.,}])(\d{1,15})\s*\\[dt]?frac\s*\{\s*(\d{1,15})\s*\}\s*\{\s*(\d{1,15})\s*\}")
_FOUND = re.compile(rf"(?<![\w.])(?:{NUMBER})(?:[eE][-+]?\d{{1,3}}(?!\w))?(?:\s*/\s*\d+(?:\.\d+)?)?\s*%?")

_MINUEND = re.compile(r"(?:[\d)%]|(?<![^\W\d_])[^\W\d_])$")

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(\{|-?\d[\d,.]*)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*(\S[^\n]*)")
_SAID = re.compile(r"\banswer\b[^\n.]{0,120}?(?:\bis(?=n['’]?t\b)|\bis\b|:|=)([^\n]*(?:\n\s*[^\n]*)?)", re.IGNORECASE)
_SUM_BEFORE = re.compile(r"^[\s:*_(\\$]*(?:[-+*/×÷().,$€£%\d\s]|\\times|\\cdot|\\div)+=\s*")

_WORDS_IN_TEX = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_TEX_SPACE = re.compile(r"(?<!\\)\\[!,;:> ]|\\q?quad|\\left|\\right|\\displaystyle|~")
_DEGREES = re.compile(r"\^?\{?\\circ\}?|°(?:\s*degrees)?")
_MONEY = re.compile(r"\\?[$€£¥₹]|\b(?:US|USD|EUR|GBP|Rs)\b\.?")
_TIMES = re.compile(rf"\s*-?\s*({'|'.join(TIMES)})s?\b", re.IGNORECASE)
_NEGATIVE = re.compile(r"\b(?:negative|minus)\s+(?=[$€£]?\d)", re.IGNORECASE)
_NAME = re.compile(r"^\s*[A-Za-z]\w*\s*(?:=|≈|\\approx)\s*")

BOXES_LIMIT = 9
"""Unclosed boxes are passed over, but not for ever."""

MATH_LIMIT = 300
"""The longest text handed to the algebra system."""

# Towers of powers, huge exponents, factorials of factorials, sums: a few characters that would take hours to work out.
_EXPLOSIVE = re.compile(
    r"\^\s*(?:\d+|[a-z]|\{[^{}]*|\([^()]*)\s*\^|\^[^()]*\)\s*\^|\^\s*[{(]?\s*-?\d{3,}"
    r"|\*\*|\d{4,}\s*!|\^\s*[{(]?\s*\d+[)}\s]*!|!.*!|\\(?:int|sum|prod|lim)|binom.*\d{5,}",
    re.DOTALL,
)
# Huge exponents all the same: sums and products of powers of letters and numbers, and fractions of those of numbers.
_POWERS = re.compile(
    r"(?:[-+\s]|\*(?!\*)|\\cdot|\\times|\d{1,6}(?!\d)|[A-Za-z]|(?<=\w)\^(?:\d|\{\d{1,4}\})(?!\s*\^))+"
    r"|(?:[-+/(){}\s]|\*(?!\*)|\\cdot|\\times|\\[dt]?frac|\d{1,6}(?!\d)|(?<=\d)\^\{\d{1,4}\}(?!\s*\^))+"
)

_POWER_OF_SUM = re.compile(r"[)\]}]\s*\^\s*[{(]?\s*-?(\d{1,2})")
TERMS_LIMIT = 1000
"""How many terms powers of sums may have, multiplied out."""

_SOLVED = re.compile(r"[=<>]|\\(?:[lg]eq?|neq?)(?![a-z])")
_DEFINITION = re.compile(r"^\s*\w+(?:\(\w+\))?\s*=")
_HARD_TO_SOLVE = re.compile(r"\^\s*[{(]?\s*-?\d{2}|(?:(?:sin|cos|tan|log|ln|exp).*){2}", re.DOTALL)
_FUNCTION = re.compile(r"sin|cos|tan|cot|log|ln|exp|sqrt")
FUNCTIONS_LIMIT = 8
"""Simplifying functions of functions takes twice as long for each."""

_FORMULA = re.compile(r"[\w)}]\s*[-+*/^=<>]\s*[-\w({]|^\W*\w\W*$|^[a-df-hj-np-tv-z]{2}$")
"""Letters that are meant as mathematics: with a sign between them, alone, or two that spell no word."""
_WORD = re.compile(r"(?=[a-z]{3})[a-z]*[eiou]", re.IGNORECASE)
_PROSE = re.compile(r"[A-Za-z]{3,}\s+[A-Za-z]{3,}")


def extract(text: str) -> str | None:
    r"""The final answer of a text: the last `\boxed{}`, else `#### 7`, else "the answer is 7", else the last number.

    >>> extract("2 + 3 = 5, so the answer is **$1,250** a year."), extract(r"Thus \boxed{\sqrt{2}}."), extract("Hm.")
    ('1250', '\\sqrt{2}', None)
    """
    text = text.translate(_MINUS)
    if (inside := boxed(text)) is not None:
        return _settled(inside)
    for marker, read in ((_HASHES, _settled), (_SAID, _first_number)):
        found = marker.findall(text)
        # Outside a box an exclamation mark ends a sentence.
        if found and (answer := read(found[-1].rstrip("!* "))) is not None:
            return answer
    return last_number(text)


def boxed(text: str) -> str | None:
    r"""What the last complete `\boxed{...}` holds, braces balanced; None if there is none.

    >>> boxed(r"\boxed{1} or rather \boxed{\frac{1}{2}} and then \boxed{3")
    '\\frac{1}{2}'
    """
    for match in list(_BOXED.finditer(text))[:-BOXES_LIMIT:-1]:
        inside = _balanced(text, match.end()) if match[1] == "{" else match[1].rstrip(".,")
        if inside is not None and inside.strip():
            return inside.strip()
    return None


def _balanced(text: str, start: int) -> str | None:
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()]
    return None


def last_number(text: str) -> str | None:
    """The last number of a text in its plainest form; None if there is none.

    >>> last_number("from 3 - 5 = -2 to 1,000.50 dollars")
    '1000.5'
    """
    found = list(_FOUND.finditer(text))
    if not found:
        return None
    if reason := rejected(text[: found[-1].start()]):
        return f"{reason}{found[-1][0]}".strip()
    return canonical(_signed(text, found[-1]))


def _first_number(text: str) -> str | None:
    """The number that a sentence gives as the answer; the sentence itself where it takes that back."""
    text = _NEGATIVE.sub("-", _SUM_BEFORE.sub("", text))
    found = _FRACTION.search(text) or _FOUND.search(text)
    if not found:
        return None
    if doubted(text[: found.start()], text[found.end() :]):
        return _first_number(text.rpartition("=")[2]) if "=" in text else text.strip()
    return canonical(found[0] if found.re is _FRACTION else _signed(text, found))


def _signed(text: str, number: re.Match[str]) -> str:
    """The number with its minus, unless that minus subtracts it from something."""
    before = text[: number.start()].rstrip()
    before = re.sub(r"\\?[$€£]\s*$", "", before).rstrip()
    if not before.endswith("-"):
        return number[0]
    return number[0] if _MINUEND.search(before[:-1].rstrip()) else f"-{number[0]}"


def _settled(text: str) -> str | None:
    """A marked answer: a number in its plainest form, mathematics as it is, a sentence by its last number."""
    if plain(text) is not None:
        return canonical(text)
    if "\\" in text or re.search(r"[\^=+*<>\[\]()]", text) or not re.search(r"\d", text):
        return text.strip().strip("*").strip() or None
    certain = not doubted(text) and not any(
        goes_on(text[number.end() :]) for number in _FOUND.finditer(text[:MATH_LIMIT])
    )
    return last_number(text) if certain and re.search(r"[A-Za-z]{2}\s", text) else text.strip()


def plain(text: str) -> Fraction | None:
    r"""The value of a plain number (separators, currency, percent sign and units aside); None for anything else.

    >>> plain("-1,234.50 dollars"), plain(r"\frac{3}{4}"), plain(r"2\frac{1}{2}"), plain("x + 1")
    (Fraction(-2469, 2), Fraction(3, 4), Fraction(5, 2), None)
    """
    if len(text) > MATH_LIMIT:
        return None
    text = text if _SIMPLE.fullmatch(text) else _bare(text)
    match = _PLAIN.match(text)
    times = _times(text[match.end() :]) if match else None
    if not match or times is None:
        return None
    sign, number, exponent, below = match.groups()
    value = Fraction(Decimal(number.replace(",", "") + (f"e{exponent}" if exponent else "")))
    if below is not None:
        divisor = Fraction(Decimal(below.replace(",", "")))
        if not divisor:
            return None
        value /= divisor
    return (-value if sign == "-" else value) * times


def _times(after: str) -> int | None:
    """What the words after a number multiply it by: a unit by 1; None for what may be more than words."""
    multiplied = _TIMES.match(after)
    rest = after[multiplied.end() :] if multiplied else after
    if rest.strip(" %.") and not is_unit(rest):
        return None
    return TIMES[multiplied[1].casefold()] if multiplied else 1


def _bare(text: str) -> str:
    """A number without what people write around it."""
    text = tidy(text).replace("{,}", ",").replace("\\%", "%")
    text = _MIXED.sub(_improper, _TEX_SPACE.sub(" ", text))
    text = _FRACTION.sub(r"\1/\2", text)
    text = _WORDS_IN_TEX.sub(lambda m: f" {m[1]} ", text)
    text = _MONEY.sub("", re.sub(r"\\[()\[\]]|\*\*|`", "", _DEGREES.sub(" degrees ", text)))
    return _NAME.sub("", text).strip().rstrip(".,;:").removesuffix("%").strip()


def _improper(mixed: re.Match[str]) -> str:
    whole, above, below = map(int, mixed.groups())
    return f"{whole * below + above}/{below}"


def canonical(text: str) -> str:
    """One way of writing each plain number, so that equal answers are equal texts; other text is only trimmed.

    >>> [canonical(t) for t in ("$1,000.00", "+7", "2/6", "x+1 ")]
    ['1000', '7', '1/3', 'x+1']
    """
    value = plain(text)
    if value is None:
        return text.strip()
    if value.denominator == 1:
        return str(value.numerator)
    return _decimal(value) or f"{value.numerator}/{value.denominator}"


def _decimal(value: Fraction) -> str | None:
    """The finite decimal expansion of a fraction, if it has one of reasonable length."""
    for places in range(1, 31):
        if 10**places % value.denominator == 0:
            digits = str(abs(value.numerator) * (10**places // value.denominator)).rjust(places + 1, "0")
            return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return None


def equal(given: str, expected: str) -> bool:
    r"""Whether two answers mean the same: decimals at once, mathematics by an algebra system.

    >>> equal("1,000.0", "1000"), equal(r"\frac{1}{2}", "0.5"), equal("50%", "0.5"), equal("7", "8")
    (True, True, True, False)
    """
    if _SIMPLE.fullmatch(given) and _SIMPLE.fullmatch(expected):
        return Decimal(given) == Decimal(expected)
    if given.strip() == expected.strip():
        return True
    if max(len(given), len(expected)) > MATH_LIMIT:
        return False
    if not is_list(expected) and len(offered := alternatives(given)) > 1:
        return len(offered) <= MOST and all(part.strip() and equal(part, expected) for part in offered)
    return not _apart(given, expected) and _worth_the_same(given, expected)


def _worth_the_same(given: str, expected: str) -> bool:
    left, right = plain(given), plain(expected)
    if left is not None and right is not None:
        return left == right or _percent(given, left) == _percent(expected, right)
    texts = (tidy(given), tidy(expected))
    if any(odd(texts[0]) and not odd(texts[1]) for odd in (unfinished, doubted)):
        return False
    return all(map(_mathematical, texts)) and not _endless(*texts) and _algebra(*texts)


def _apart(given: str, expected: str) -> bool:
    """Whether two answers are of different kinds: units, bases, a pair beside a set, equations beside one value."""
    for kind in (measure, _base, _bracket):
        left, right = kind(given), kind(expected)
        if left is not None and right is not None and left != right:
            return True
    return "," not in expected and len(re.findall(r"=[^,=]*(?:,|$)", given)) > 1


def _base(text: str) -> str | None:
    found = re.fullmatch(r"\s*\d+_\{?(\d+)\}?\s*", text)
    return found[1] if found else None


def _bracket(text: str) -> str | None:
    text = text.replace("\\left", "").lstrip()
    return "set" if text.startswith("\\{") else "tuple" if text.startswith(("(", "[")) and "," in text else None


def _percent(text: str, value: Fraction) -> Fraction:
    return value / 100 if "%" in text else value


def _mathematical(text: str) -> bool:
    """Whether an algebra system could make sense of a text."""
    if len(text) > MATH_LIMIT:
        return False
    if re.search(r"[\d\\]", text):
        return not _PROSE.search(text)
    return bool(_FORMULA.search(text)) and not _WORD.search(text)


def _endless(*texts: str) -> bool:
    """Whether an algebra system could be kept busy for ever by these texts together."""
    if any(len(_FUNCTION.findall(text)) > FUNCTIONS_LIMIT for text in texts):
        return True
    return any(map(_explosive, texts)) and not all(map(_POWERS.fullmatch, texts))


def _explosive(text: str) -> bool:
    if _EXPLOSIVE.search(text) or _terms(text) > TERMS_LIMIT:
        return True
    relation = _DEFINITION.sub("", text)
    return bool(_SOLVED.search(relation) and _HARD_TO_SOLVE.search(relation))


def _terms(text: str) -> int:
    """How many terms a text has at most once its powers of sums are multiplied out."""
    terms = 1
    for power in _POWER_OF_SUM.finditer(text):
        signs = len(re.findall(r"[-+]", text[: power.start()]))
        terms *= comb(int(power[1]) + signs, signs)
    return terms


def _algebra(given: str, expected: str) -> bool:
    import logging

    from math_verify import parse, verify

    # It warns that its own timeouts are off. They work by SIGALRM, in main threads only; the host's deadline stands in.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    gold, answer = (parse(f"${text}$", parsing_timeout=None) for text in (expected, given))
    return bool(verify(gold, answer, timeout_seconds=None))
