"""Very long answers are read in linear, not quadratic time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from rollbook.core import Message, Rollout, Task
from rollbook.environments.answers.extraction import last_block
from rollbook.environments.builtin.bbh import BBH
from rollbook.environments.builtin.gsm8k import GSM8K
from rollbook.environments.builtin.ifeval import IFEval
from rollbook.environments.builtin.json_schema import JSONSchema
from rollbook.environments.builtin.math import Math
from rollbook.environments.builtin.mcqa import MCQA
from rollbook.environments.builtin.string_match import StringMatch
from rollbook.environments.environment import Environment
from rollbook.sandbox import Rule

SIZE = 40_000
REPEATED_PARTS = (
    "a",
    "1",
    "1,",
    " ",
    "\\(",
    "\\[",
    "\\boxed{",
    "<answer>",
    "answer is ",
    "```",
    "`",
    "{",
    "$",
    "\\text{",
    "e ",
    "x^9",
)
INSTRUCTIONS: dict[str, dict[str, object]] = {
    "change_case:capital_word_frequency": {"capital_frequency": 1, "capital_relation": "at least"},
    "detectable_content:number_placeholders": {"num_placeholders": 3},
    "detectable_content:postscript": {"postscript_marker": "P.S."},
    "detectable_format:json_format": {},
    "detectable_format:multiple_sections": {"section_spliter": "a", "num_sections": 3},
    "detectable_format:number_bullet_lists": {"num_bullets": 3},
    "detectable_format:number_highlighted_sections": {"num_highlights": 3},
    "detectable_format:title": {},
    "keywords:forbidden_words": {"forbidden_words": ["b"]},
    "keywords:frequency": {"keyword": "b", "frequency": 3, "relation": "at least"},
    "length_constraints:nth_paragraph_first_word": {"num_paragraphs": 3, "nth_paragraph": 1, "first_word": "b"},
    "length_constraints:number_paragraphs": {"num_paragraphs": 3},
    "length_constraints:number_sentences": {"num_sentences": 3, "relation": "less than"},
    "length_constraints:number_words": {"num_words": 3, "relation": "less than"},
    "startend:end_checker": {"end_phrase": "b"},
}
"""Kinds of which none is followed by most of these answers, so that every form of the answer is looked at."""

ROWS: list[tuple[Environment, dict[str, object]]] = [
    (GSM8K(), {"answer": "4"}),
    (Math(data=[]), {"answer": "4"}),
    (MCQA(data=[]), {"answer": "A", "options": {"A": "x", "B": "y"}}),
    (MCQA(data=[], grading="lenient"), {"answer": "A", "options": {"A": "x", "B": "y"}}),
    (StringMatch(data=[]), {"answer": "Paris"}),
    (JSONSchema(data=[]), {"schema": {"type": "object"}}),
]


MOST_S = 5.0
"""CPU time for what takes milliseconds: a search that restarts at every position needs many times as much."""


def cpu_seconds(work: Callable[..., object], *arguments: object) -> float:
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row[0]).__name__)
def test_no_answer_is_so_long_that_it_cannot_be_scored(row: tuple[Environment, dict[str, object]]) -> None:
    environment, fields = row
    task = Task(id="t", prompt="q", **fields)  # type: ignore[arg-type]
    for part in REPEATED_PARTS:
        for before, after in (("", "x"), ("The answer is 4. ", ""), ("\\boxed{", "}"), ("", "`")):
            text = before + part * (SIZE // len(part)) + after
            rollout = Rollout(task=task, sample=0, seed=0, messages=[*task.messages, Message("assistant", text)])
            assert cpu_seconds(environment.verify, task, rollout) < MOST_S, (before, part, after)


MARKED_PARTS = ("a", "[", "<<", "*", "\n", "\n*", ". ", "...", ".a", "] ", "\\boxed{", "answer is ")
MARKED_ROWS: list[tuple[Environment, dict[str, object]]] = [
    *((BBH(), {"answer": target, "input": "Which?"}) for target in ("] )", "ant bee")),
    (IFEval(), {"instructions": [{"kind": kind, "arguments": arguments} for kind, arguments in INSTRUCTIONS.items()]}),
]


@pytest.mark.parametrize("row", MARKED_ROWS, ids=lambda row: type(row[0]).__name__)
def test_no_marks_are_so_many_that_they_cannot_be_counted(row: tuple[Environment, dict[str, object]]) -> None:
    environment, fields = row
    task = Task(id="t", prompt="q", **fields)  # type: ignore[arg-type]
    for part in MARKED_PARTS:
        text = part * (SIZE // len(part)) + "x"
        rollout = Rollout(task=task, sample=0, seed=0, messages=[*task.messages, Message("assistant", text)])
        assert cpu_seconds(environment.verify, task, rollout) < MOST_S, part


@pytest.mark.parametrize("line", ["```" + "a" * SIZE + "`", "`" * SIZE + "x`", "~~~" + " \t" * SIZE + "`"])
def test_no_line_is_so_long_that_a_fence_is_looked_for_in_vain(line: str) -> None:
    assert cpu_seconds(last_block, line) < MOST_S


@pytest.mark.parametrize("printed", ["1" * SIZE + "x", "1." * SIZE, "1e" * SIZE, "-" * SIZE, "1" * SIZE + "e1x"])
def test_no_output_keeps_the_comparison_busy(printed: str) -> None:
    rule = Rule(tolerance=1e-6)
    assert cpu_seconds(rule.same, "5.0", printed) < MOST_S
    assert not rule.same("5.0", printed)
