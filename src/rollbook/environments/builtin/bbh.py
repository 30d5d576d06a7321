"""BIG-Bench Hard: 6,511 questions of 27 tasks (Suzgun et al., 2022), asked together or one task by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from rollbook.core import Rollout, Score, Task
from rollbook.environments.answers.choices import read_letter
from rollbook.environments.answers.comparison import is_equal
from rollbook.environments.answers.extraction import extract_answer, find_boxed, find_tagged, strip_thinking
from rollbook.environments.builtin.string_match import normalize_text
from rollbook.environments.data_rows import DataRow, PromptTemplate, choose_template, rows
from rollbook.environments.environment import Environment
from rollbook.environments.registry import suggest_names
from rollbook.errors import UsageError

_SHIPPED_DATA = Path(__file__).with_name("data") / "bbh.jsonl.gz"

TASKS = (
    "boolean_expressions",
    "causal_judgement",
    "date_understanding",
    "disambiguation_qa",
    "dyck_languages",
    "formal_fallacies",
    "geometric_shapes",
    "hyperbaton",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "logical_deduction_three_objects",
    "movie_recommendation",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "penguins_in_a_table",
    "reasoning_about_colored_objects",
    "ruin_names",
    "salient_translation_error_detection",
    "snarks",
    "sports_understanding",
    "temporal_sequences",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects",
    "web_of_lies",
    "word_sorting",
)
WORD_PAIRS = (("Yes", "No"), ("True", "False"), ("valid", "invalid"))
"""Answers of tasks that have two possible ones."""

_OPTIONS = "Options:\n"
_OPTION = re.compile(r"^\(([A-Z])\)\s*(.*)$", re.MULTILINE)
_LETTER = re.compile(r"\(([A-Z])\)")
_NUMBER = re.compile(r"-?\d+")
_BRACKETS = re.compile(r"[()\[\]{}<>\s]+")
_STATED = re.compile(r"\banswer\b[^\n.:]{0,40}?(?:\bis\b|:)[ \t*_:]*", re.IGNORECASE)
_LIST_MARK = re.compile(r"^[ \t]*(?:\d+[.)]|[-*•])\s+", re.MULTILINE)
_BOX_LINE = re.compile(r"\\boxed\s*\{(.*)\}")
_TEXT_LINE = re.compile(r"\\(?:text|textbf|mathrm|mathtt)\s*\{(.*)\}")
_SEPARATORS = re.compile(r"[\s,;]+|->|→")


class BBH(Environment):
    """Questions that were hard for language models: `bbh` asks all, `bbh:word_sorting` those of one task.

    They are asked without examples. Reports have numbers for each task.
    """

    description = "6,511 questions of 27 hard tasks, or of one by name: bbh:word_sorting (Suzgun et al., 2022)"
    kind = "benchmark"
    prompt_template = '{input}\n\nThink step by step, then end with a line "The answer is ..." and nothing after it.'
    report_by = "task"
    row_fields: ClassVar = {
        "input": "the question, with its options",
        "task": f"one of {', '.join(TASKS)}",
        "id": "the task and a number: word_sorting-007",
    }

    def __init__(self, name: str | None = None, template: str | None = None) -> None:
        if name is not None and name not in TASKS:
            raise UsageError(f"bbh has no task {name!r}{suggest_names(name, TASKS)}")
        self._name, self._template = name, template

    def tasks(self) -> Iterator[Task]:
        """Yield the questions task by task, under their own names: boolean_expressions-000 and so on."""
        template = choose_template(self._template, self.prompt_template)
        for row in rows(_SHIPPED_DATA):
            if self._name in (None, row.values["task"]):
                yield _make_task(row, template)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if the final answer is the expected one, else 0.

        An answer is a letter, one of two words, a number, closing brackets, or words in order, as the target is.
        """
        answer = read_answer(rollout.text, task.fields["input"], task.answer)
        return Score(float(answer is not None and is_target(answer, task.answer)), answer=answer)

    def solution(self, task: Task) -> str | None:
        """Return the target as a sentence."""
        return f"The answer is {task.answer}"


def _make_task(row: DataRow, template: PromptTemplate) -> Task:
    values = row.values
    prompt = template.fill(values, row.where)
    return Task(row.id, prompt, answer=values["target"], input=values["input"], task=values["task"])


def read_answer(text: str, question: str, target: str) -> str | None:
    """Return the final answer of a text in one form; None if it has none of the kind that the target is.

    >>> read_answer("So the answer is (B).", "Which?\\nOptions:\\n(A) red\\n(B) blue", "(A)")
    '(B)'
    >>> read_answer("**Answer:** ] ) }", "Complete [ ...", "] )"), read_answer("It is -7.", "2 - 9 =", "-7")
    ('] ) }', '-7')
    """
    text = _remove_question(strip_thinking(text), question)
    if _LETTER.fullmatch(target):
        letter = read_letter(text, dict(_OPTION.findall(question)), lenient=True)
        return letter and f"({letter})"
    pair = next((pair for pair in WORD_PAIRS if target.casefold() in map(str.casefold, pair)), None)
    if pair is not None:
        word = read_letter(text, {word.upper(): word for word in pair}, lenient=True)
        return word and word.casefold()
    if _NUMBER.fullmatch(target):
        return extract_answer(text)
    if _BRACKETS.fullmatch(target):
        return _read_brackets(text)
    return _normalize_words(find_final_text(text)) or None


def _remove_question(text: str, question: str) -> str:
    """Remove a copy of the question, and of its options: the last option of a list is no answer."""
    at = question.find(_OPTIONS)
    options = question[at:] if at >= 0 else ""
    for copied in filter(None, (question.strip(), options.strip())):
        text = text.replace(copied, "\n")
    return text


def is_target(answer: str, target: str) -> bool:
    """Whether an answer that was read is the target."""
    if _NUMBER.fullmatch(target):
        return is_equal(answer, target)
    if _BRACKETS.fullmatch(target):
        return "".join(answer.split()) == "".join(target.split())
    same: Callable[[str], str] = str.casefold if _LETTER.fullmatch(target) else _normalize_words
    return same(answer) == same(target)


def find_final_text(text: str) -> str:
    r"""Return the text that is given as the answer: in tags, in a box, after "the answer is", else the last line.

    Where nothing follows "the answer is" on its line, the lines below it are the answer, up to an empty one.

    >>> find_final_text("The answer is:\n- ant\n- bee\n\nDone."), find_final_text("Hm.\nant bee")
    ('- ant\n- bee', 'ant bee')
    """
    if tagged := find_tagged(text):
        return tagged[-1].strip()
    if (boxed := find_boxed(text)) is not None:
        return boxed
    stated = list(_STATED.finditer(text))
    if not stated:
        return (text.strip().splitlines() or [""])[-1].strip()
    rest = text[stated[-1].end() :]
    line = rest.partition("\n")[0].strip(" \t*_")
    return line or rest.strip().partition("\n\n")[0].strip()


def _read_brackets(text: str) -> str | None:
    """Return the closing brackets of an answer, a space between them; None if there is anything else in it."""
    # Braces that are part of the answer need not be balanced, so a box ends with its line.
    boxed = _BOX_LINE.match(text, max(0, text.rfind("\\boxed")))
    inside = boxed[1] if boxed and not find_tagged(text) else find_final_text(text)
    if written := _TEXT_LINE.fullmatch(inside.strip()):
        inside = written[1]
    bare = re.sub(r"\\([{}])", r"\1", inside).strip(" \t\n.,`*_$\"'")
    return " ".join("".join(bare.split())) if bare and _BRACKETS.fullmatch(bare) else None


def _normalize_words(text: str) -> str:
    """Return words in one case with a space between them, without list marks, commas and quotes."""
    words = (word.strip('*_`"“”.:') for word in _SEPARATORS.split(normalize_text(_LIST_MARK.sub("", text))))
    return " ".join(filter(None, words))
