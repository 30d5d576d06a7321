"""The 25 kinds of instruction of IFEval (Zhou et al., 2023), each decided by a rule on the text of an answer.

The names of the kinds and of their arguments are those of the data. The rules follow the paper and its published
verdicts, in code of our own; `benchmarks/ifeval_rules.py` compares the two. Two kinds need outside data there and have
a definition of ours: what a sentence is (`count_sentences`) and what a word in capitals is (`count_capital_words`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

from rollbook.errors import UsageError

LANGUAGE_SEED = 0
"""The package that detects languages draws random numbers: a fixed seed makes its verdict the same every time."""

FIXED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
"""The answers of which `constrained_response` wants one."""

ABBREVIATIONS = frozenset(
    re.findall(
        r"\S+",
        "mr mrs ms dr prof sr jr st mt vs etc inc ltd co corp dept est fig vol pp eds approx gen col sgt capt "
        "lt rev hon jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun "
        "e.g i.e a.m p.m u.s u.k u.n ph.d b.a m.a b.sc m.sc d.c p.s p.p.s",
    )
)
"""Words whose full stop ends no sentence."""

# Searches that begin at every position of a long answer would take hours: they begin at a mark, or go line by line.
_ENDING = re.compile(r"(?<![.!?])([.!?]++)(?:[\"'’”)\]}]*+(?=\s|$)|(?=[*\[({]))")
_LAST_WORD = re.compile(r"\S*$")
LONGEST_ABBREVIATION = 20
NEXT_CHARS = 1000
"""How far the next word after a full stop is looked for."""
_SUFFIX = re.compile(r"(?<=[^' ])('s|'S|'m|'M|'d|'D|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)(?= |\.?$|\.\s)")
_JOINED = re.compile(r"\b(can)(not)\b|\b(gim|lem)(me)\b|\b(gon|wan)(na)\b|\b(got)(ta)\b", re.IGNORECASE)
_SIGNS = re.compile(r"[;@#$%&?!*()\[\]{}<>\"“”„«»‘’`]|--|\.{2,}|[:,](?!\d)")


def check_relation(count: int, relation: str, limit: int) -> bool:
    """Whether a number is `at least` or `less than` a limit."""
    if relation not in ("at least", "less than"):
        raise UsageError(f"relation {relation!r}: give 'at least' or 'less than'")
    return count >= limit if relation == "at least" else count < limit


def count_sentences(text: str) -> int:
    """Count sentences: each ends with . ! or ? before white space or an asterisk; what is left at the end is one more.

    The full stop of an abbreviation or of a single letter ends none; dots in a row do if a capital letter follows. The
    number of a list item ("1.") counts as one, and a line break alone separates nothing, as in the authors' code.

    >>> count_sentences("Dr. A. Smith left. Why? Nobody knows"), count_sentences("1. Stay. 2. Go!")
    (3, 4)
    """
    end = count = 0
    for match in _ENDING.finditer(text):
        before = _LAST_WORD.findall(text[max(0, match.start() - LONGEST_ABBREVIATION) : match.start()])[0]
        if _ends_sentence(before, match[1], text[match.end() : match.end() + NEXT_CHARS]):
            count, end = count + 1, match.end()
    return count + bool(text[end:].strip())


def _ends_sentence(before: str, stops: str, after: str) -> bool:
    if set(stops) - {"."}:
        return True
    if len(stops) > 1:
        return after.lstrip()[:1].isupper() or not after.strip()
    word = before.lstrip("\"'“‘([{*_").casefold()
    return not after.strip() or (word not in ABBREVIATIONS and not (len(word) == 1 and word.isalpha()))


def count_words(text: str) -> int:
    """Count runs of letters, digits and underscores."""
    return len(re.findall(r"\w+", text))


def count_capital_words(text: str) -> int:
    """Count words in capitals, as an English tokenizer splits them: IT'S and CANNOT are two, AND/OR and U.S. are one.

    >>> count_capital_words("NASA's R&D: AND/OR, I'm in the U.S. now")
    6
    """
    text = _JOINED.sub(lambda match: " ".join(filter(None, match.groups())), text)
    return sum(word.isupper() for word in _SUFFIX.sub(r" \1", _SIGNS.sub(r" \g<0> ", text)).split())


def detect_language(text: str) -> str | None:
    """Return the code of the language that a text is in; None where nothing in it tells."""
    try:
        import langdetect
    except ImportError as error:
        raise UsageError(f"ifeval needs a package ({error}); pip install 'rollbook[ifeval]'") from None
    langdetect.DetectorFactory.seed = LANGUAGE_SEED
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None


def has_language(text: str, language: str) -> bool:
    """The answer is in this language; one that tells no language, such as digits, counts, as in the paper's code."""
    return detect_language(text) in (language, None)


def is_english_capital(text: str) -> bool:
    """The answer is English, in capital letters only."""
    return text.isupper() and has_language(text, "en")


def is_english_lowercase(text: str) -> bool:
    """The answer is English, without capital letters."""
    return text.islower() and has_language(text, "en")


def has_capital_words(text: str, capital_frequency: int, capital_relation: str) -> bool:
    """So many words are in capitals."""
    return check_relation(count_capital_words(text), capital_relation, capital_frequency)


def has_keywords(text: str, keywords: Sequence[str]) -> bool:
    """Every keyword occurs, also as a part of a word, in any case."""
    return all(any(_find_all(keyword, text)) for keyword in keywords)


def has_keyword_often(text: str, keyword: str, frequency: int, relation: str) -> bool:
    """A keyword occurs so often, also as a part of words, in any case."""
    return check_relation(sum(1 for _ in _find_all(keyword.strip(), text)), relation, frequency)


def lacks_words(text: str, forbidden_words: Sequence[str]) -> bool:
    """None of these words occurs as a whole word, in any case."""
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


def has_letter_often(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """A character occurs so often, in any case."""
    return check_relation(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def _find_all(words: str, text: str) -> Iterator[re.Match[str]]:
    return re.finditer(re.escape(words), text, re.IGNORECASE)


def has_sentences(text: str, num_sentences: int, relation: str) -> bool:
    """There are so many sentences."""
    return check_relation(count_sentences(text), relation, num_sentences)


def has_words(text: str, num_words: int, relation: str) -> bool:
    """There are so many words."""
    return check_relation(count_words(text), relation, num_words)


def has_paragraphs(text: str, num_paragraphs: int) -> bool:
    """There are so many parts between dividers `***`; only the first and the last divider may be at an edge."""
    parts = [bool(part.strip()) for part in text.split("***")]
    return all(parts[1:-1]) and sum(parts) == num_paragraphs


def has_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """There are so many paragraphs, an empty line between them, and one of them begins with this word."""
    parts = [part.strip() for part in text.split("\n\n")]
    count = sum(map(bool, parts))
    if count != num_paragraphs or not 0 < nth_paragraph <= count or not parts[nth_paragraph - 1]:
        return False
    word = parts[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return re.split(r"[.,?!'\"]", word)[0].lower() == first_word.lower()


def has_placeholders(text: str, num_placeholders: int) -> bool:
    """There are at least so many placeholders in square brackets."""
    return sum(map(_count_brackets, text.split("\n"))) >= num_placeholders


def _count_brackets(line: str) -> int:
    """Count the pairs of an opening bracket and the next closing one."""
    count = at = 0
    while (opened := line.find("[", at)) >= 0 and (closed := line.find("]", opened)) >= 0:
        count, at = count + 1, closed + 1
    return count


def has_postscript(text: str, postscript_marker: str) -> bool:
    """There is a postscript with this marker; a space may follow its first dots, and case does not count."""
    marker = postscript_marker.strip()
    pattern = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}.get(marker, re.escape(marker.lower()))
    return re.search(pattern, text.lower()) is not None


def has_bullets(text: str, num_bullets: int) -> bool:
    """There are exactly so many bullet points: lines that begin with `-`, or with one `*`."""
    lines = [line.lstrip() for line in text.split("\n")]
    return _count_starred(lines) + sum(line.startswith("-") for line in lines) == num_bullets


def _count_starred(lines: Sequence[str]) -> int:
    """Count lines that begin with one asterisk; below one that is alone, the next line is the text of its point."""
    count, at = 0, 0
    while at < len(lines):
        alone = lines[at] == "*" and at + 1 < len(lines)
        count += alone or (lines[at][:1] == "*" and lines[at][1:2] not in ("", "*"))
        at += 2 if alone else 1
    return count


def has_fixed_answer(text: str) -> bool:
    """One of the three allowed answers occurs."""
    return any(answer in text for answer in FIXED_ANSWERS)


def has_highlights(text: str, num_highlights: int) -> bool:
    """There are at least so many highlighted parts: `*part*`; `**part**` counts too."""
    single = [part[1:-1] for part in re.findall(r"\*[^\n*]*\*", text)]
    double = [part[2:-2] for part in re.findall(r"\*\*[^\n*]*\*\*", text)]
    return sum(bool(part.strip()) for part in single + double) >= num_highlights


def has_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """There are at least so many marks of a section: its word and a number."""
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def is_json(text: str) -> bool:
    """The whole answer is JSON, which may be in one fenced block."""
    bare = re.sub(r"^```(?:json|Json|JSON)?", "", text.strip()).removesuffix("```")
    try:
        json.loads(bare.strip())
    except (ValueError, RecursionError):
        return False
    return True


def has_title(text: str) -> bool:
    """There is a title in double angular brackets, and it is not empty."""
    return any(_read_title(line).lstrip("<").rstrip(">").strip() for line in text.split("\n"))


def _read_title(line: str) -> str:
    """Return the text from the first `<<` to the last `>>` of a line."""
    start, end = line.find("<<"), line.rfind(">>")
    return line[start : end + 2] if 0 <= start < end - 2 else ""


def has_two_responses(text: str) -> bool:
    """There are two different answers with six asterisks between them."""
    parts = [part.strip() for part in text.split("******")]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


def repeats_prompt(text: str, prompt_to_repeat: str) -> bool:
    """The answer begins with the request, word for word, in any case."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def has_end(text: str, end_phrase: str) -> bool:
    """The answer ends with this phrase, in any case; quotes around the answer do not count."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def lacks_commas(text: str) -> bool:
    """There is no comma."""
    return "," not in text


def is_quoted(text: str) -> bool:
    """The whole answer is in double quotes."""
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


RULES: dict[str, Callable[..., bool]] = {
    "change_case:capital_word_frequency": has_capital_words,
    "change_case:english_capital": is_english_capital,
    "change_case:english_lowercase": is_english_lowercase,
    "combination:repeat_prompt": repeats_prompt,
    "combination:two_responses": has_two_responses,
    "detectable_content:number_placeholders": has_placeholders,
    "detectable_content:postscript": has_postscript,
    "detectable_format:constrained_response": has_fixed_answer,
    "detectable_format:json_format": is_json,
    "detectable_format:multiple_sections": has_sections,
    "detectable_format:number_bullet_lists": has_bullets,
    "detectable_format:number_highlighted_sections": has_highlights,
    "detectable_format:title": has_title,
    "keywords:existence": has_keywords,
    "keywords:forbidden_words": lacks_words,
    "keywords:frequency": has_keyword_often,
    "keywords:letter_frequency": has_letter_often,
    "language:response_language": has_language,
    "length_constraints:nth_paragraph_first_word": has_first_word,
    "length_constraints:number_paragraphs": has_paragraphs,
    "length_constraints:number_sentences": has_sentences,
    "length_constraints:number_words": has_words,
    "punctuation:no_comma": lacks_commas,
    "startend:end_checker": has_end,
    "startend:quotation": is_quoted,
}
"""The rule of each kind of instruction; its arguments are the text and those of the data."""


def follows(text: str, kind: str, arguments: dict[str, object]) -> bool:
    """Whether a text follows an instruction; an empty one follows none."""
    return bool(text.strip()) and RULES[kind](text, **arguments)


def list_loose_texts(text: str) -> list[str]:
    r"""Return the texts of which any may follow an instruction loosely, as in the paper, without repetitions.

    They are the answer itself; without its first line, its last, or both (introductions and closing words); and each of
    these without asterisks (markdown for emphasis).

    >>> list_loose_texts("Sure:\n*a*\nb")
    ['Sure:\n*a*\nb', '*a*\nb', 'Sure:\n*a*', '*a*', 'Sure:\na\nb', 'a\nb', 'Sure:\na', 'a']
    """
    lines = text.split("\n")
    texts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys([*texts, *(each.replace("*", "") for each in texts)]))


def follows_loosely(text: str, kind: str, arguments: dict[str, object]) -> bool:
    """Whether one of the loose texts follows an instruction."""
    return any(follows(each, kind, arguments) for each in list_loose_texts(text))
