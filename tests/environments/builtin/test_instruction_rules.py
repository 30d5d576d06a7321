"""IFEval's 25 kinds of instruction: answers that follow each, answers that just fail to, and what loose means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.environments.builtin.instruction_rules import (
    RULES,
    count_capital_words,
    count_sentences,
    follows,
    follows_loosely,
)
from rollbook.errors import UsageError

ENGLISH = "the children played in the garden until the evening came and it was time to go home"
CASES: dict[str, tuple[dict, list[str], list[str]]] = {
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "less than"},
        ["one WORD here", "none here"],
        ["TWO words: IT is", "IT'S one word, or two"],
    ),
    "change_case:english_capital": (
        {},
        [ENGLISH.upper()],
        [ENGLISH, ENGLISH.upper() + " x", "DAS HAUS IST SEHR GROSS"],
    ),
    "change_case:english_lowercase": ({}, [ENGLISH], [ENGLISH.upper(), ENGLISH + " X", "das haus ist sehr groß"]),
    "combination:repeat_prompt": (
        {"prompt_to_repeat": "Say it."},
        ["Say it. It.", "  SAY IT.\nIt."],
        ["It. Say it.", '"Say it." It.', "Say it!"],
    ),
    "combination:two_responses": (
        {},
        ["a******b", "******\na\n******\nb"],
        ["a******a", "a*****b", "a******b******c", "a", "a******", "a******\n******b"],
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, ["[a] [b]", "[][]"], ["[a]", "[a\nb] [c]"]),
    "detectable_content:postscript": (
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. Write!", "bye p. s. write"],
        ["PS: write", "Bye."],
    ),
    "detectable_format:constrained_response": (
        {},
        ["My answer is yes.", "Well: My answer is maybe. Ok"],
        ["my answer is yes.", "My answer is yes", "Yes."],
    ),
    "detectable_format:json_format": (
        {},
        ['{"a": 1}', '```json\n{"a": 1}\n```', "[1]", "```\n1\n```"],
        ["{'a': 1}", 'Here: {"a": 1}', "```json\n```", "[" * 100_000],
    ),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\na\nSection 2\nb", "Section1 Section2 Section3"],
        ["Section 1", "SECTION 1 SECTION 2", "Section A Section B"],
    ),
    "detectable_format:number_bullet_lists": (
        {"num_bullets": 2},
        ["* a\n* b", "- a\n- b", "Text:\n* a\n  - b"],
        ["* a", "* a\n* b\n* c", "1. a\n2. b", "** a\n** b", "• a\n• b"],
    ),
    "detectable_format:number_highlighted_sections": (
        {"num_highlights": 2},
        ["*a* and *b*", "**a** and **b**", "*a* **b**"],
        ["*a*", "* * * *", "**", "*a\nb* c"],
    ),
    "detectable_format:title": ({}, ["<<T>>\ntext", "x <<a b>> y"], ["<T>", "<<>>", "<< >>", "<<a\nb>>"]),
    "keywords:existence": (
        {"keywords": ["red", "sea"]},
        ["The Red SEA", "season, reddish"],
        ["The red one", "re d sea"],
    ),
    "keywords:forbidden_words": (
        {"forbidden_words": ["red", "sea"]},
        ["reddish season", "blue"],
        ["The RED one", "sea."],
    ),
    "keywords:frequency": (
        {"keyword": "sea", "frequency": 2, "relation": "at least"},
        ["Sea, season", "seasea"],
        ["sea", "se a sea"],
    ),
    "keywords:letter_frequency": (
        {"letter": "#", "let_frequency": 2, "let_relation": "at least"},
        ["#a #b", "###"],
        ["#a", "hash"],
    ),
    "language:response_language": (
        {"language": "de"},
        ["Die Kinder spielten im Garten, bis der Abend kam und sie nach Hause gingen.", "12345"],
        [ENGLISH, "La maison est grande et le jardin est petit."],
    ),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        ["One.\n\nThen two.", 'One.\n\n"then, two', "One.\n\nTHEN's"],
        ["One.\nThen two.", "One.\n\nAnd then.", "One.\n\nThen\n\nThree", "One.\n\n\n\nThen two.", "Then"],
    ),
    "length_constraints:number_paragraphs": (
        {"num_paragraphs": 2},
        ["a\n***\nb", "***\na\n***\nb\n***", "a***b"],
        ["a\n\nb", "a\n***\n***\nb", "a***b***c", "a"],
    ),
    "length_constraints:number_sentences": (
        {"num_sentences": 3, "relation": "at least"},
        ["One. Two! Three?", "1. One. Two"],
        ["One. Two", "Dr. J. Smith left. Good", "3.14 is e.g. a number. Yes"],
    ),
    "length_constraints:number_words": (
        {"num_words": 3, "relation": "less than"},
        ["one two", "one - two!"],
        ["one two three", "one-two three", "it's me"],
    ),
    "punctuation:no_comma": ({}, ["a b; c", "a，b"], ["a, b", "1,000"]),
    "startend:end_checker": (
        {"end_phrase": "That is all."},
        ["So. That is all.", '"so. that is all."', "That is all.\n "],
        ["That is all. Bye.", "That is all"],
    ),
    "startend:quotation": ({}, ['"a"', ' "a" and "b"\n'], ['"', "“a”", '"a', 'a"']),
}


def test_every_kind_of_the_data_has_a_rule_and_cases():
    assert set(CASES) == set(RULES)
    assert len(RULES) == 25


@pytest.mark.parametrize("kind", CASES)
def test_answers_that_follow_an_instruction_and_answers_that_do_not(kind: str):
    arguments, right, wrong = CASES[kind]
    assert [text[:80] for text in right if not follows(text, kind, arguments)] == []
    assert [text[:80] for text in wrong if follows(text, kind, arguments)] == []


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_answer_follows_nothing(kind: str, text: str):
    assert not follows(text, kind, CASES[kind][0])
    assert not follows_loosely(text, kind, CASES[kind][0])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("punctuation:no_comma", "Sure, here it is:\nNo commas here."),
        ("startend:end_checker", "So. That is all.\nI hope this helps!"),
        ("startend:quotation", 'Of course:\n"All of it."\nBye'),
        ("startend:quotation", '**"All of it."**'),
        ("detectable_format:json_format", 'Here you go:\n{"a": 1}'),
        ("combination:repeat_prompt", "**Say it.**\nIt."),
    ],
)
def test_introductions_closing_lines_and_asterisks_do_not_count_loosely(kind: str, text: str):
    assert not follows(text, kind, CASES[kind][0])
    assert follows_loosely(text, kind, CASES[kind][0])


def test_what_is_strictly_followed_is_loosely_followed():
    for kind, (arguments, right, _) in CASES.items():
        assert all(follows_loosely(text, kind, arguments) for text in right)


def test_a_comma_in_the_middle_is_not_forgiven():
    assert not follows_loosely("a\nb, c\nd", "punctuation:no_comma", {})


@pytest.mark.parametrize(
    ("text", "count"),
    [("Hi", 1), ("Hi.", 1), ("Hi. You", 2), ('"Hi." No.', 2), ("Wait... what", 1), ("Wait... What", 2), ("a.b c.d", 1)],
)
def test_sentences(text: str, count: int):
    assert count_sentences(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [("A b C", 2), ("DON'T", 2), ("CANNOT", 2), ("AND/OR", 1), ("(NASA)", 1), ("R&D", 2), ("U.S.", 1), ("Ab 12", 0)],
)
def test_words_in_capitals(text: str, count: int):
    assert count_capital_words(text) == count


def test_an_unknown_relation_is_no_verdict():
    with pytest.raises(UsageError, match="relation 'around'"):
        follows("a b", "length_constraints:number_words", {"num_words": 2, "relation": "around"})


def test_the_language_is_the_same_every_time():
    text = "no va a la sala"  # close to several languages
    arguments = [("language:response_language", {"language": code}) for code in ("es", "it", "pt", "ca", "tl")]
    verdicts = {tuple(follows(text, *each) for each in arguments) for _ in range(5)}
    assert len(verdicts) == 1


def test_the_comparison_with_the_authors_code_says_loudly_when_it_cannot_be_made(tmp_path):
    script = Path(__file__).parents[3] / "benchmarks" / "ifeval_rules.py"
    code = f"""if True:
        import importlib.util, runpy, sys
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name: None if name == "lm_eval" else find(name)
        sys.argv = ["ifeval_rules"]
        runpy.run_path({str(script)!r}, run_name="__main__")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("NOT COMPARED WITH THE AUTHORS' CODE: no package lm_eval")
