"""Spelling of mathematics: characters and loose TeX written as the one form that an algebra system reads."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

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


def tidy(text: str) -> str:
    r"""A short text with its mathematics in plain TeX.

    >>> tidy("3½"), tidy("2√2"), tidy("10⁻³"), tidy("1 1/2"), tidy("2(3)")
    ('3\\frac{1}{2}', '2\\sqrt{2}', '10^{-3}', '1\\frac{1}{2}', '2 \\cdot (3)')
    """
    text = text.translate(_SIGNS)
    if not text.isascii():
        text = _GLYPHS.sub(lambda glyph: "\\frac{{{}}}{{{}}}".format(*_plain(glyph[0]).split("/")), text)
        text = _RAISED.sub(lambda power: f"^{{{_plain(power[0]).replace('+', '')}}}", text)
    for loose, strict in _LOOSE:
        text = loose.sub(strict, text)
    return text


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).translate({0x2044: "/", 0x2212: "-"})
