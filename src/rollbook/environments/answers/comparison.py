"""Compare answers: parse numbers, normalize TeX, detect hedges, decide equality by algebra where needed.

A hedge is an answer that names more than one value, none at all, or what a number is not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import comb

from rollbook.environments.answers.units import MULTIPLIERS, find_unit, is_unit

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"


def compile_text_commands(*more: str) -> re.Pattern[str]:
    r"""Return the pattern of TeX commands that hold words, such as `\text{cm}`; group 1 has the words."""
    return re.compile(rf"\\(?:{'|'.join(('text', 'textbf', 'textit', 'mathrm', 'mbox', *more))})\s*\{{([^{{}}]*)\}}")


_SIMPLE = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?")
_PLAIN = re.compile(rf"([-+]?)\s*({NUMBER})(?:[eE]([-+]?\d{{1,3}}))?(?:\s*/\s*({NUMBER}))?")
FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*(-?[\d.,]+)\s*\}")
MIXED = re.compile(
    r"(?<![\d.,}])(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})\s*\\[dt]?frac\s*\{\s*(\d{1,15})\s*\}\s*\{\s*(\d{1,15})\s*\}"
)

_TEXT_COMMAND = compile_text_commands()
_WORDS_IN_TEX = compile_text_commands("mathbf", "operatorname")
_TEX_SPACE = re.compile(r"(?<!\\)\\[!,;:> ]|\\q?quad|\\left|\\right|\\displaystyle|~")
_DEGREES = re.compile(r"\^?\{?\\circ\}?|°(?:\s*degrees)?")
_MONEY = re.compile(r"\\?[$€£¥₹]|\b(?:US|USD|EUR|GBP|Rs)\b\.?")
_TIMES = re.compile(rf"\s*-?\s*({'|'.join(MULTIPLIERS)})s?\b", re.IGNORECASE)

_NAME = re.compile(r"^\s*[A-Za-z]\w*\s*(?:=|≈|\\approx)\s*")

MATH_LIMIT = 300
"""The longest text passed to the algebra system."""

# Towers of powers, huge exponents, factorials of factorials, sums: a few characters that would take hours to compute.
_EXPLOSIVE = re.compile(
    r"\^\s*(?:\d+|[a-z]|\{[^{}]*|\([^()]*)\s*\^|\^[^()]*\)\s*\^|\^\s*[{(]?\s*-?\d{3,}"
    r"|\*\*|\d{4,}\s*!|\^\s*[{(]?\s*\d+[)}\s]*!|!.*!|\\(?:int|sum|prod|lim)|binom.*\d{5,}",
    re.DOTALL,
)
# Allowed with huge exponents: sums and products of powers of letters and numbers, and fractions of those of numbers.
_POWERS = re.compile(
    r"(?:[-+\s]|\*(?!\*)|\\cdot|\\times|\d{1,6}(?!\d)|[A-Za-z]|(?<=\w)\^(?:\d|\{\d{1,4}\})(?!\s*\^))+"
    r"|(?:[-+/(){}\s]|\*(?!\*)|\\cdot|\\times|\\[dt]?frac|\d{1,6}(?!\d)|(?<=\d)\^\{\d{1,4}\}(?!\s*\^))+"
)

_POWER_OF_SUM = re.compile(r"[)\]}]\s*\^\s*[{(]?\s*-?(\d{1,2})")
TERMS_LIMIT = 1000
"""How many terms powers of sums may have when multiplied out."""

_SOLVED = re.compile(r"[=<>]|\\(?:[lg]eq?|neq?)(?![a-z])")
_DEFINITION = re.compile(r"^\s*\w+(?:\(\w+\))?\s*=")
_HARD_TO_SOLVE = re.compile(r"\^\s*[{(]?\s*-?\d{2}|(?:(?:sin|cos|tan|log|ln|exp).*){2}", re.DOTALL)
_FUNCTION = re.compile(r"sin|cos|tan|cot|log|ln|exp|sqrt")
FUNCTIONS_LIMIT = 8
"""Each nested function doubles the time to simplify."""

_FORMULA = re.compile(r"[\w)}]\s*[-+*/^=<>]\s*[-\w({]|^\W*\w\W*$|^[a-df-hj-np-tv-z]{2}$")
"""Letters that are mathematics: with an operator between them, alone, or two that form no word."""
_WORD = re.compile(r"(?=[a-z]{3})[a-z]*[eiou]", re.IGNORECASE)
_PROSE = re.compile(r"[A-Za-z]{3,}\s+[A-Za-z]{3,}")


def parse_number(text: str) -> Fraction | None:
    r"""Return the value of a plain number (separators, currency, percent sign and units aside); None for anything else.

    >>> parse_number("-1,234.50 dollars"), parse_number(r"\frac{3}{4}"), parse_number("x + 1")
    (Fraction(-2469, 2), Fraction(3, 4), None)
    >>> parse_number(r"2\frac{1}{2}")
    Fraction(5, 2)
    """
    if len(text) > MATH_LIMIT:
        return None
    text = text if _SIMPLE.fullmatch(text) else _strip_number(text)
    match = _PLAIN.match(text)
    times = _read_multiplier(text[match.end() :]) if match else None
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


def _read_multiplier(after: str) -> int | None:
    """Return the factor that the words after a number mean: 1 for a unit; None if they may be more than words."""
    multiplied = _TIMES.match(after)
    rest = after[multiplied.end() :] if multiplied else after
    if rest.strip(" %.") and not is_unit(rest):
        return None
    return MULTIPLIERS[multiplied[1].casefold()] if multiplied else 1


def _strip_number(text: str) -> str:
    """Remove what people write around a number."""
    text = normalize_tex(text).replace("{,}", ",").replace("\\%", "%")
    text = MIXED.sub(_improper_fraction, _TEX_SPACE.sub(" ", text))
    text = FRACTION.sub(r"\1/\2", text)
    text = _WORDS_IN_TEX.sub(lambda m: f" {m[1]} ", text)
    text = _MONEY.sub("", re.sub(r"\\[()\[\]]|\*\*|`", "", _DEGREES.sub(" degrees ", text)))
    return _NAME.sub("", text).strip().rstrip(".,;:").removesuffix("%").strip()


def _improper_fraction(mixed: re.Match[str]) -> str:
    whole, above, below = (int(part.replace(",", "")) for part in mixed.groups())
    return f"{whole * below + above}/{below}"


def canonicalize(text: str) -> str:
    """Return a plain number in one canonical form, so that equal answers are equal texts; other text is only trimmed.

    >>> [canonicalize(t) for t in ("$1,000.00", "+7", "2/6", "x+1 ")]
    ['1000', '7', '1/3', 'x+1']
    """
    value = parse_number(text)
    if value is None:
        return text.strip()
    if value.denominator == 1:
        return str(value.numerator)
    return _finite_decimal(value) or f"{value.numerator}/{value.denominator}"


def _finite_decimal(value: Fraction) -> str | None:
    """Return the finite decimal expansion of a fraction, if it has one of at most 30 places."""
    for places in range(1, 31):
        if 10**places % value.denominator == 0:
            digits = str(abs(value.numerator) * (10**places // value.denominator)).rjust(places + 1, "0")
            return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return None


def is_equal(given: str, expected: str) -> bool:
    r"""Whether two answers mean the same: decimals directly, mathematics by an algebra system.

    >>> is_equal("1,000.0", "1000"), is_equal(r"\frac{1}{2}", "0.5"), is_equal("50%", "0.5"), is_equal("7", "8")
    (True, True, True, False)
    """
    if _SIMPLE.fullmatch(given) and _SIMPLE.fullmatch(expected):
        return Decimal(given) == Decimal(expected)
    if given.strip() == expected.strip():
        return True
    if max(len(given), len(expected)) > MATH_LIMIT:
        return False
    if not may_be_list(expected) and len(parts := list_alternatives(given)) > 1:
        return len(parts) <= MAX_ALTERNATIVES and all(part.strip() and is_equal(part, expected) for part in parts)
    return not _different_kinds(given, expected) and _same_value(given, expected)


def _same_value(given: str, expected: str) -> bool:
    left, right = parse_number(given), parse_number(expected)
    if left is not None and right is not None:
        return left == right or _percent_value(given, left) == _percent_value(expected, right)
    texts = (normalize_tex(given), normalize_tex(expected))
    if any(odd(texts[0]) and not odd(texts[1]) for odd in (is_unfinished, is_doubted)):
        return False
    return all(map(_is_mathematical, texts)) and not _may_not_finish(*texts) and _equal_by_algebra(*texts)


def _different_kinds(given: str, expected: str) -> bool:
    """Whether two answers are of different kinds: units, bases, a pair and a set, equations and one value."""
    for kind in (find_unit, _number_base, _bracket_kind):
        left, right = kind(given), kind(expected)
        if left is not None and right is not None and left != right:
            return True
    return "," not in expected and len(re.findall(r"=[^,=]*(?:,|$)", given)) > 1


def _number_base(text: str) -> str | None:
    match = re.fullmatch(r"\s*\d+_\{?(\d+)\}?\s*", text)
    return match[1] if match else None


def _bracket_kind(text: str) -> str | None:
    text = text.replace("\\left", "").lstrip()
    return "set" if text.startswith("\\{") else "tuple" if text.startswith(("(", "[")) and "," in text else None


def _percent_value(text: str, value: Fraction) -> Fraction:
    return value / 100 if "%" in text else value


def _is_mathematical(text: str) -> bool:
    """Whether an algebra system could parse a text."""
    if len(text) > MATH_LIMIT:
        return False
    if re.search(r"[\d\\]", text):
        return not _PROSE.search(text)
    return bool(_FORMULA.search(text)) and not _WORD.search(text)


def _may_not_finish(*texts: str) -> bool:
    """Whether an algebra system might not finish with these texts."""
    if any(len(_FUNCTION.findall(text)) > FUNCTIONS_LIMIT for text in texts):
        return True
    return any(map(_is_explosive, texts)) and not all(map(_POWERS.fullmatch, texts))


def _is_explosive(text: str) -> bool:
    if _EXPLOSIVE.search(text) or _count_terms(text) > TERMS_LIMIT:
        return True
    relation = _DEFINITION.sub("", text)
    return bool(_SOLVED.search(relation) and _HARD_TO_SOLVE.search(relation))


def _count_terms(text: str) -> int:
    """Return the largest number of terms that a text can have once its powers of sums are multiplied out."""
    terms = 1
    for power in _POWER_OF_SUM.finditer(text):
        signs = len(re.findall(r"[-+]", text[: power.start()]))
        terms *= comb(int(power[1]) + signs, signs)
    return terms


def _equal_by_algebra(given: str, expected: str) -> bool:
    import logging

    from math_verify import parse, verify

    # It warns that its own timeouts are off. They use SIGALRM, in main threads only; the pool's deadline replaces them.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    gold, answer = (parse(f"${text}$", parsing_timeout=None) for text in (expected, given))
    return bool(verify(gold, answer, timeout_seconds=None))


_SIGNS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "\u00a0": " ",
        "\u202f": " ",
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "∞": r"\infty ",
        "∅": r"\emptyset ",
        "π": r"\pi ",
    }
)
_GLYPHS = re.compile(r"[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")
_RAISED = re.compile(r"[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LOOSE: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"√\s*(\d+|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(r"√\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset "),
    (re.compile(r"\\[bB]igg?[lrm]?(?![A-Za-z])"), ""),
    (re.compile(r"\{\\[,!;:]\}|(?<=\d)[’'](?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<=\d)\s*(?:\\[,;: ]|~|\\q?quad(?![A-Za-z]))\s*(?=\d)"), " "),
    (re.compile(r"(?<![\w.,^{}])\d{1,3}(?: \d{3})+(?!\d)"), lambda number: number[0].replace(" ", "")),
    (re.compile(r"\^\s*-\s*(\d+)"), r"^{-\1}"),
    (re.compile(r"(?<![\w}.^])(\d+)\s*\((?=-?\d+\))"), r"\1 \\cdot ("),
    (re.compile(r"(?<![\w.,/}^])(\d{1,15})\s+(\d{1,15})/(\d{1,15})(?![\d.])"), r"\1\\frac{\2}{\3}"),
]


def normalize_tex(text: str) -> str:
    r"""Return a short text with its mathematics in plain TeX.

    >>> normalize_tex("3½"), normalize_tex("2√2"), normalize_tex("10⁻³"), normalize_tex("1 1/2"), normalize_tex("2(3)")
    ('3\\frac{1}{2}', '2\\sqrt{2}', '10^{-3}', '1\\frac{1}{2}', '2 \\cdot (3)')
    """
    text = text.translate(_SIGNS)
    if not text.isascii():
        text = _GLYPHS.sub(lambda glyph: "\\frac{{{}}}{{{}}}".format(*_to_ascii(glyph[0]).split("/")), text)
        text = _RAISED.sub(lambda power: f"^{{{_to_ascii(power[0]).replace('+', '')}}}", text)
    for loose, strict in _LOOSE:
        text = loose.sub(strict, text)
    return text


def _to_ascii(text: str) -> str:
    return unicodedata.normalize("NFKC", text).translate({0x2044: "/", 0x2212: "-"})


_ALTERNATIVE = re.compile(
    r"\bor\b|\bversus\b|\bvs\b|\\(?:vee|lor|rightarrow|Rightarrow|to|implies|longrightarrow)(?![A-Za-z])|[→⇒∨]"
    r"|(?<=\d)\s*(?:\||\\mid(?![A-Za-z]))\s*(?=-?\d)",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r",|\\(?:pm|mp|cup)(?![A-Za-z])|[±∪]")
_UNFINISHED = re.compile(
    r"^\s*(?:\\(?:neq?|not|neg|lnot)(?![A-Za-z])|[≠¬])|(?:\\(?:times|cdot|div)|(?<!\\)[-+*/^=<>×·÷])\s*$"
    r"|(?<!\\frac)(?<!\\frac )(?<![\d.])\d+\s+\d|\d\s*(?:\.\.+|…|\\[lc]?dots)\s*\d"
    r"|\d\s+(?:squared|cubed|factorial)\b"
)
_DOUBT = re.compile(
    r"(?<!\\)\b(?:not|never|nor|neither|either|but|except|less|fewer|more|greater|smaller|larger|least|most|than|half"
    r"|third|quarter|twice|double|triple|thrice|times|root|square of|cube of|logarithm|factorial|between|one of|over"
    r"|under|above|below|wrong|incorrect|maybe|perhaps)\b|\bn['’]?t\b|n['’]t\b|\?\s*\w",
    re.IGNORECASE,
)
_MORE_TO_COME = re.compile(
    r"\W*(?:or|and|to|versus|vs|through)\W*\d|\s*\?\s*\w|%?\s*(?:of\W*\d|squared|cubed|factorial|times|plus|minus|mod)\b"
    r"|\s*(?:dozen|hundred|thousand|million|billion|trillion|(?:less|more|fewer|greater) than)\b",
    re.IGNORECASE,
)
_REJECTED = re.compile(
    r"(?:\b\d[\d.,]*\W{0,9}(?:or|versus|vs)|(?:\bnot|n['’]t|\bcannot)(?: be)?|\bthan"
    r"|\bbetween\W{0,9}[\d.,]+\W{0,9}and)\W{0,9}$",
    re.IGNORECASE,
)

MAX_ALTERNATIVES = 4
"""A text with more alternatives is no answer."""


def list_alternatives(text: str) -> list[str]:
    r"""Return the alternative values in a text: those on both sides of "or", of an arrow, of an equals sign.

    >>> list_alternatives(r"4 \text{ or } 5"), list_alternatives("2+2=4"), list_alternatives("x=4")
    (['4', '5'], ['2+2', '4'], ['x=4'])
    """
    words = _TEXT_COMMAND.sub(r" \1 ", text)
    parts = _ALTERNATIVE.split(words)
    if len(parts) == 1:
        sides = text.split("=")
        return [text] if any(re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", side)) for side in sides) else sides
    return [part.strip().strip("()$ ,").strip() for part in parts]


def may_be_list(text: str) -> bool:
    """Whether a text may contain several values."""
    return bool(_SEVERAL.search(text) or _ALTERNATIVE.search(text))


def is_unfinished(text: str) -> bool:
    r"""Whether a text is no value though it has a number: an unfinished operation, a negation, adjacent numbers.

    >>> [is_unfinished(text) for text in ("4+", r"\neq 4", "4 5", r"\frac 1 2", "4")]
    [True, True, True, False, False]
    """
    return bool(_UNFINISHED.search(text))


def is_doubted(before: str, after: str = "") -> bool:
    """Whether the words around a number say that it is not, or not alone, the answer."""
    return bool(_DOUBT.search(before[-200:]) or continues_number(after) or find_rejection(before))


def continues_number(after: str) -> bool:
    """Whether the text after a number changes its value, or names a second one."""
    return bool(_MORE_TO_COME.match(after[:40]))


def find_rejection(before: str) -> str | None:
    """Return the words right before a number that say it is not the answer, or one of two.

    >>> find_rejection("It is 17 or "), find_rejection("It can't be "), find_rejection("Not 20, but ")
    ('17 or ', "n't be ", None)
    """
    match = _REJECTED.search(before[-60:])
    return match[0] if match else None


_GAP = re.compile(r"(?<!\\)\\[,;:> ]|\\q?quad|~")
_SPACE = re.compile(r"(?<!\\)\\[!,;:> ]|\\q?quad|\\left|\\right|\\displaystyle|[\s~$]")
_APART = re.compile(r"(?<=\d)\s+(?=\d)(?!\d{3}(?!\d))")
"""Space between two numbers; before three digits it may separate thousands."""

_LABEL = re.compile(
    r"^(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*(?:\(?[A-J]\)|(?:the )?(?:final )?answer(?: is|:))\s*\}|\([A-J]\)\s)"
    r"(?:\\ |[\s~])*(?=\S)",
    re.IGNORECASE,
)

_DELIMITERS = re.compile(r"^(?:\$\$|\$|\\\(|\\\[)\s*(.*?)\s*(?:\$\$|\$|\\\)|\\\])$", re.DOTALL)


def strip_delimiters(text: str) -> str:
    r"""Remove dollar signs, TeX brackets, emphasis and the full stop around an expression.

    >>> strip_delimiters(r"**\(x + 1\)**."), strip_delimiters(" $5$ ")
    ('x + 1', '5')
    """
    text = text.strip().strip("*").strip().rstrip(".,;?").strip().strip("*").strip()
    match = _DELIMITERS.match(text)
    return match[1] if match and "$" not in match[1] else text


def is_same_answer(given: str, expected: str) -> bool:
    r"""Whether two final answers mean the same, as text or as mathematics.

    >>> is_same_answer(r"\text{Tuesday}", "tuesday"), is_same_answer("3", "4")
    (True, False)
    >>> is_same_answer(r"2\sqrt{2}", r"$\sqrt{8}$")
    True
    """
    given, expected = strip_delimiters(given), strip_delimiters(expected)
    return _fold_expression(given) == _fold_expression(expected) or is_equal(_LABEL.sub("", given), expected)


def _fold_expression(text: str) -> str:
    text = _SPACE.sub("", _APART.sub("|", _GAP.sub(" ", _WORDS_IN_TEX.sub(r"\1", text)))).casefold()
    return text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").rstrip(".")
