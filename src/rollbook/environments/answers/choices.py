"""Read which option a text chooses: by its label in a box, in lenient mode also by other wordings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollbook.environments.answers.comparison import compile_text_commands
from rollbook.environments.answers.extraction import find_boxed, find_tagged, strip_thinking

SURROUNDING = " \t\r\n().*_`$[]{}:\"'“”‘’"
CLAIM_CHARS = 300
"""A sentence must name its option within this many characters."""

_TEX = compile_text_commands("textrm", "mathbf", "mathit", "emph")
_CUE = re.compile(
    r"\b(?:answer|option|choice)\b[^\n.]{0,40}?(?:\bis\b|:|=)|\bI(?:['’]ll|\s+will|\s+would)?\s+(?:choose|pick|select)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\b(?:wrong|incorrect|false|which|what|not)\b(?:\s+\w+){0,2}\s*$", re.IGNORECASE)
_DENIES = re.compile(r"\b(?:wrong|incorrect|false|not)\b", re.IGNORECASE)
_LEAD = re.compile(r"\W*(?:(?:the\s+)?(?:option|answer|choice|letter|number)\b)?\W*", re.IGNORECASE)
_WORD = re.compile(r"(?:[ai]|\d+)\s+(?!because\b|since\b|as\b|is\b)[a-z]")
"""An `a` or `i` that is a word and not an option, or a number that counts something."""
_REFUTED = re.compile(
    r"\W{0,3}\s*(?:(?:is|was|seems|looks)(?:n['’]t\b|\s+(?:\w+\s+)?(?:not|wrong|incorrect|false)\b)|can(?:not|['’]t)\b)",
    re.IGNORECASE,
)
_END = re.compile(r"[.!?](?=\W*(?:\s|$))|\n")
_CONTRAST = re.compile(r"(?:\bnot|\bthan|\bunlike|\binstead\s+of|\bover|\bexcludes?|\brules?\s+out)\W*$", re.IGNORECASE)
_JOINED = re.compile(
    r"(?:\b(?:or|and|nor|maybe|perhaps|possibly|alternatively|even|be)\b|[/&])\W*(?:option\W+|answer\W+)?$",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"\)?\s+(?:is|are|was|were|has|can|would)\b")
_VERB = re.compile(r"\)?\s+(?!(?:or|and|also|too|but|as|alternatively)\b)[a-z]{2,}")
_HEDGE = re.compile(
    r"(?<!not |n't )\b(?:possible|plausible|also(?!\s+(?:not|wrong|incorrect)\b)|too\s*$|as\s+well|correct|right)\b",
    re.IGNORECASE,
)
_REASON = re.compile(r"\b(?:because|since|while|whereas|given\s+that)\b", re.IGNORECASE)
_AFTER = re.compile(r"[).:*]|\s*$")


def read_letter(text: str, options: dict[str, str], *, lenient: bool) -> str | None:
    r"""Return the letter (or other label) that a text chooses, or None.

    >>> options = {"A": "red", "B": "blue"}
    >>> [read_letter(t, options, lenient=True) for t in (r"\boxed{B}", "The answer is (b).", "B) blue", "Blue")]
    ['B', 'B', 'B', 'B']
    >>> read_letter("The answer is B.", options, lenient=False)
    """
    text = strip_thinking(text)
    inside = find_boxed(text)
    if inside is None and lenient and (tagged := find_tagged(text)):
        inside = tagged[-1]
    if inside is not None:
        return _find_named_option(_strip_tex(inside), options, lenient)
    if not lenient:
        return None
    for claim in _find_claims(text):
        label = _read_claim(claim, options)
        if label is not None:
            return label or None
    lines = text.strip().splitlines()
    return _find_named_option(lines[-1], options, lenient) if lines else None


def fold_text(text: str) -> str:
    """Return a text in one case, without repeated spaces and surrounding punctuation."""
    return " ".join(text.casefold().split()).strip(" .*`\"'")


def find_label(words: str, options: dict[str, str]) -> str | None:
    """Return the label of the option with this text, if there is exactly one."""
    same = [label for label, text in options.items() if fold_text(text) == fold_text(words)]
    return same[0] if len(same) == 1 else None


def _strip_tex(text: str) -> str:
    """Remove the TeX commands around words, up to three levels deep."""
    for _ in range(3):
        text = _TEX.sub(r"\1", text)
    return text


def _find_named_option(text: str, options: dict[str, str], lenient: bool) -> str | None:
    """Return the option that a short text names: by its label, in lenient mode also by its words."""
    for bare in (text.strip().upper(), text.strip(SURROUNDING).upper()):
        if bare in options:
            return bare
    if not lenient:
        return None
    leading = _read_leading_label(text, options)
    if leading is None:
        return find_label(text, options) or _find_option_called_correct(text, options)
    label, rest = leading
    if fold_text(rest.lstrip(" ).:*-–—")) == fold_text(options[label]):
        return label
    if not _AFTER.match(rest):
        return find_label(text, options) or _find_option_called_correct(text, options)
    return None if any(_find_other_options(rest, label, options)) else label


def _find_option_called_correct(text: str, options: dict[str, str]) -> str | None:
    """Return the option of a sentence like "B is correct."."""
    leading = _read_leading_label(text, options)
    if leading is None or text.rstrip().endswith("?"):
        return None
    label, rest = leading
    if any(_find_other_options(rest, label, options)):
        return None
    verdict = r"[).*]*\s+is\s+(?:(?:the|my)\s+)?(?:(?:correct|right|best)\b|(?:final\s+)?(?:answer|choice)\b)"
    return label if re.match(verdict, rest, re.IGNORECASE) else None


def _read_leading_label(text: str, options: dict[str, str]) -> tuple[str, str] | None:
    """Return the label that a text begins with, and the text after it."""
    start = _LEAD.match(text)
    assert start
    labels = "|".join(re.escape(label) for label in sorted(options, key=len, reverse=True))
    found = re.compile(rf"({labels})(?!\w|['’-]\w|[.,]\d)", re.IGNORECASE).match(text, start.end())
    return (found[1].upper(), text[found.end() :]) if found else None


def _find_claims(text: str) -> Iterator[str]:
    """Yield the texts that follow "the answer is" and the like, the last one first; denials are left out."""
    for cue in list(_CUE.finditer(text))[::-1]:
        before = re.split(r"[.!?;:\n]", text[max(0, cue.start() - 60) : cue.start()])[-1]
        if not _DENIED.search(before) and not _DENIES.search(cue[0]):
            yield text[cue.end() : cue.end() + CLAIM_CHARS].partition("\n")[0]


def _read_claim(claim: str, options: dict[str, str]) -> str | None:
    """Return the label that a claim names; empty if it names several, None if it is not a claim."""
    ended = _END.search(claim)
    sentence = claim[: ended.start()] if ended else claim
    if ended and ended[0] == "?":
        return None
    leading = _read_leading_label(claim, options)
    at = len(claim) - len(leading[1]) if leading else 0
    if leading is None or _WORD.match(claim, at - len(leading[0])):
        return find_label(sentence.lstrip(" :*"), options) or find_label(claim.lstrip(" :*"), options)
    label, rest = leading[0], leading[1][: max(0, len(sentence) - at)]
    if _REFUTED.match(rest):
        return None
    return "" if any(_find_other_options(rest, label, options)) else label


def _find_other_options(rest: str, label: str, options: dict[str, str]) -> Iterator[str]:
    """Yield other options that the same sentence also chooses; contrasts and the words of the first do not count."""
    own = options[label]
    at = rest.casefold().find(own.casefold()) if len(own) > 1 else -1
    if 0 <= at <= 5:
        rest = rest[at + len(own) :]
    rest = _REASON.split(rest[:CLAIM_CHARS], maxsplit=1)[0]
    for other in (other for other in options if other != label):
        either = rf"{re.escape(other)}(?!\w)|(?<=\(){re.escape(other.lower())}(?=\))"
        if len(other) > 1:  # a word, such as Yes
            either = rf"(?i:{re.escape(other)})(?!\w)"
        elif other not in ("A", "I"):
            either += rf"|(?:(?<=or )|(?<=and )|(?<=/)){re.escape(other.lower())}(?!\w)"
        for found in re.finditer(rf"(?<![\w'’])(?:{either})", rest):
            if not _is_contrasted(rest[: found.start()], rest[found.end() :], word=other in ("A", "I")):
                yield other


def _is_contrasted(before: str, after: str, *, word: bool) -> bool:
    """Whether a letter is not a second choice: a word, a contrast to the first, or the subject of its own clause."""
    if _CONTRAST.search(before) or (word and re.match(r"\s+(?!is\b)[a-z]", after)):
        return True
    clause = _CLAUSE if _JOINED.search(before) else _VERB
    return bool(clause.match(after)) and not _HEDGE.search(after)
