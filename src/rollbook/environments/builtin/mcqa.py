"""Multiple choice: rows with a question, options and a letter, graded strictly or leniently."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from string import ascii_uppercase
from typing import ClassVar

from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.answers.choices import SURROUNDING, find_label, fold_text, read_letter
from rollbook.environments.data_rows import GYM_PROMPT, DataRow, PromptTemplate, read_tasks
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

INSTRUCTION = "Think it through, then give the letter of the right option in \\boxed{}."
OPTION_FIELDS = ("options", "choices")
OTHER_ANSWER_FIELDS = ("answerKey", "answer_index")
"""What ARC and MMLU-Pro call the answer."""
LETTERED_OPTIONS = "lettered_options"
"""What templates call the options, each on a line behind its letter."""
GRADINGS = ("strict", "lenient")
TABLE_SUFFIXES = (".csv", ".tsv")
"""Files in which numbers are text."""


class MCQA(Environment):
    r"""Questions from `data`. Strict grading reads only a letter in \boxed{}; lenient grading also other wordings.

    `index`: whether an answer that is a number is always an option's place, from 0, also if it is another one's text.
    """

    kind = "rows"
    description = "multiple choice from your own rows (--data), graded by letter: mcqa?grading=strict or lenient"
    row_fields: ClassVar = {
        "question": "the question; also called problem, prompt or messages",
        "options": "a list of texts, or texts by letter; also called choices",
        "answer": "the right letter, text or index; also called expected_answer, answerKey or answer_index",
    }
    example_row: ClassVar = {
        "question": "Which planet is closest to the sun?",
        "options": ["Venus", "Mercury"],
        "answer": "B",
    }

    def __init__(self, data: str, grading: str = "strict", template: str | None = None, index: bool = False) -> None:
        if grading not in GRADINGS:
            raise UsageError(f"mcqa: grading={grading}; give {' or '.join(GRADINGS)}")
        self._data, self._grading, self._template, self._index = data, grading, template, index

    def tasks(self) -> Iterator[Task]:
        """Yield the questions in the order of their rows, each with its options under letters."""
        return read_tasks(self._data, self._template, partial(_make_task, index=self._index))

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 for the right letter, else 0."""
        letter = read_letter(rollout.text, _options_of_task(task), lenient=self._grading == "lenient")
        return Score(float(letter == task.answer), answer=letter)

    def solution(self, task: Task) -> str | None:
        """Return the right letter in a box."""
        return f"\\boxed{{{task.answer}}}"


def _make_task(row: DataRow, template: PromptTemplate | None, index: bool) -> Task:
    letters = _read_options(row)
    # The prompts of NeMo Gym's rows show the options already.
    shown = {} if isinstance(row.values.get(GYM_PROMPT), dict) else letters
    options = "\n".join(f"{letter}: {words}" for letter, words in shown.items())
    instruction = INSTRUCTION.replace("letter", "number") if all(map(str.isdecimal, letters)) else INSTRUCTION
    asked = DataRow(row.path, row.line, {**row.values, LETTERED_OPTIONS: options}) if template else row
    task = asked.task(f"{options}\n\n{instruction}" if options else instruction, template)
    other = row.first(*OTHER_ANSWER_FIELDS)
    answer = row.values[other] if task.answer is None and other else task.answer
    task.answer = _find_letter(row, answer, letters, index)
    dropped = (*OPTION_FIELDS, *OTHER_ANSWER_FIELDS, LETTERED_OPTIONS)
    task.fields = {k: v for k, v in task.fields.items() if k not in dropped} | {"letters": letters}
    return task


def _options_of_task(task: Task) -> dict[str, str]:
    """Return the options of a task by letter; a task made elsewhere, as by NeMo Gym, has them as its row does."""
    return task.fields.get("letters") or _read_options(DataRow(f"task {task.id}", 0, task.fields))


def _read_options(row: DataRow) -> dict[str, str]:
    """Read the options of a row by letter: a list of texts or of {letter: text}, such an object, or labelled texts."""
    name = row.first(*OPTION_FIELDS)
    value = row.decode_field(name)
    if isinstance(value, dict) and {"text", "label"} <= set(value):
        value = dict(zip(map(str, value["label"]), value["text"], strict=False))
    if isinstance(value, list) and all(isinstance(v, dict) and {"text", "label"} <= set(v) for v in value):
        value = [{str(one["label"]): one["text"]} for one in value]
    if isinstance(value, list) and value and all(isinstance(v, dict) and len(v) == 1 for v in value):
        value = {key: words for one in value for key, words in one.items()}
    if isinstance(value, list):
        value = dict(zip(ascii_uppercase, value, strict=False)) if len(value) <= len(ascii_uppercase) else None
    if not isinstance(value, dict) or len(value) < 2:
        raise UsageError(
            f"{row.where}: no options; give a list of at least two, or {{letter: text}}; it has: {row.field_names}"
        )
    if any(words is None or isinstance(words, dict | list) or not str(words).strip() for words in value.values()):
        raise UsageError(f"{row.where}: an option is empty, or not text")
    letters = {str(key).strip().upper(): str(words) for key, words in value.items()}
    if len(letters) < len(value):
        raise UsageError(f"{row.where}: two options have the same letter")
    return letters


def _find_letter(row: DataRow, answer: JSON, letters: dict[str, str], index: bool) -> str:
    """Return the right letter: given as a letter, as the option's text, or, if no label is a number, as its index."""
    value = answer.strip() if isinstance(answer, str) else answer
    if isinstance(value, str) and row.path.partition("?")[0].endswith(TABLE_SUFFIXES) and value.isdecimal():
        value = int(value)
    letter = None
    if isinstance(value, int) and not isinstance(value, bool):
        letter = _letter_of_number(row, value, letters, index)
    elif isinstance(value, str):
        labels = (value.upper(), value.strip(SURROUNDING).upper())
        letter = next((label for label in labels if label in letters), None) or find_label(value, letters)
    if letter is None:
        raise UsageError(f"{row.where}: the answer {answer!r} is not one of the options {', '.join(letters)}")
    return letter


def _letter_of_number(row: DataRow, number: int, letters: dict[str, str], index: bool) -> str | None:
    """Return the option of a number: its label if labels are numbers, else its index; an ambiguous one is an error."""
    if any(label.isdecimal() for label in letters):
        return str(number) if str(number) in letters else None
    place = list(letters)[number] if 0 <= number < len(letters) else None
    if (
        not index
        and any(fold_text(words) == str(number) for words in letters.values())
        and place != find_label(str(number), letters)
    ):
        raise UsageError(f"{row.where}: the answer {number} may be an option's index or its text; write its letter")
    return place
