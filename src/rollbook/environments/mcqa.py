"""Multiple choice: rows with a question, options and a letter, graded strictly or leniently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import ascii_uppercase

from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.answers import boxed
from rollbook.environments.environment import Environment
from rollbook.environments.rows import Row, rows
from rollbook.environments.template import Template
from rollbook.errors import UsageError

INSTRUCTION = "Think it through, then give the letter of the right option in \\boxed{}."
OPTIONS = ("options", "choices")
GRADINGS = ("strict", "lenient")

_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_TEX = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SAID = re.compile(r"\b(?:answer|option|choice)\b[^\n.]{0,40}?(?:\bis\b|:|=)\W*\b([A-Z])\b", re.IGNORECASE)
_WORD = re.compile(r"[ai]\s+(?!because\b|since\b|as\b)[a-z]")
"""An `a` or `i` that is a word, not an option."""
_OTHER = re.compile(
    r"\W*?(?:\b(?:or|and|nor)\b|/|&|,)(?:\s+(?:maybe|perhaps|possibly|even))?\W*"
    r"(?!I\s+[a-z])([A-Zb-hj-z])\b(?!\s+(?:is|are|was|were|has|can|would)\b)"
)
"""A second option in one breath with the first: such an answer chooses none."""
_ALONE = re.compile(r"^\W*(?:option\s+|answer\s*:\s*)?\(?([A-Z])\)?(?:[).:]|\s*$|\*)", re.IGNORECASE)


class MCQA(Environment):
    r"""Questions from `data`. Strict grading takes a letter in \boxed{} alone; lenient also what else is meant so."""

    description = "multiple choice from your own rows (--data), graded by letter: mcqa?grading=strict or lenient"

    def __init__(self, data: str, grading: str = "strict", template: str | None = None) -> None:
        if grading not in GRADINGS:
            raise UsageError(f"mcqa: grading={grading}; give {' or '.join(GRADINGS)}")
        self._data, self._grading, self._template = data, grading, template

    def tasks(self) -> Iterator[Task]:
        """The questions in the order of their rows, each with its options under letters."""
        template = Template.read(self._template) if self._template else None
        for row in rows(self._data):
            yield _task(row, template)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """1 for the right letter, else 0."""
        letter = read_letter(rollout.text, _letters_of(task), lenient=self._grading == "lenient")
        return Score(float(letter == task.answer), answer=letter)

    def solution(self, task: Task) -> str | None:
        """The letter in a box."""
        return f"\\boxed{{{task.answer}}}"


def read_letter(text: str, options: dict[str, str], *, lenient: bool) -> str | None:
    r"""The letter that an answer chooses, or None.

    >>> options = {"A": "red", "B": "blue"}
    >>> [read_letter(t, options, lenient=True) for t in (r"\boxed{B}", "The answer is (b).", "B) blue", "Blue")]
    ['B', 'B', 'B', 'B']
    >>> read_letter("The answer is B.", options, lenient=False)
    """
    text = _THOUGHT.sub("", text)
    inside = boxed(text)
    if inside is not None:
        return _named(_TEX.sub(r"\1", inside), options, lenient)
    if not lenient:
        return None
    said = [m for m in _SAID.finditer(text) if m[1].upper() in options and not _WORD.match(text, m.start(1))]
    if said:
        return _chosen(text, said[-1], options)
    lines = text.strip().splitlines()
    return _named(lines[-1], options, lenient) if lines else None


def _named(text: str, options: dict[str, str], lenient: bool) -> str | None:
    """The option that a short text names: by its letter, leniently also by its words."""
    bare = text.strip().strip("().*` ").upper()
    if bare in options:
        return bare
    if not lenient:
        return None
    if (match := _ALONE.match(text)) and match[1].upper() in options:
        return _chosen(text, match, options)
    same = [letter for letter, words in options.items() if _folded(words) == _folded(text)]
    return same[0] if len(same) == 1 else None


def _chosen(text: str, match: re.Match[str], options: dict[str, str]) -> str | None:
    """The letter of a match, unless another option is named in the same breath."""
    rest = text[match.end(1) :]
    other = _OTHER.match(rest) or _ALONE.match(rest.lstrip(").:*"))
    return None if other and other[1].upper() in options else match[1].upper()


def _folded(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .*`")


def _task(row: Row, template: Template | None) -> Task:
    letters = _options(row)
    shown = "" if _has_them(row) else "\n".join(f"{letter}: {words}" for letter, words in letters.items())
    task = row.task(f"{shown}\n\n{INSTRUCTION}" if shown else INSTRUCTION, template)
    task.answer = _letter(row, task.answer, letters)
    task.fields = {k: v for k, v in task.fields.items() if k not in OPTIONS} | {"letters": letters}
    return task


def _has_them(row: Row) -> bool:
    """Whether the row's own prompt shows the options already, as rows of NeMo Gym do."""
    return isinstance(row.values.get("responses_create_params"), dict)


def _letters_of(task: Task) -> dict[str, str]:
    """The options of a task by letter; one that others made, as rows of NeMo Gym are, has them as its row does."""
    return task.fields.get("letters") or _options(Row(f"task {task.id}", 0, task.fields))


def _options(row: Row) -> dict[str, str]:
    """The options of a row by letter: from a list of texts or of {letter: text}, from such an object, from labels."""
    name = row.first(*OPTIONS)
    value = row.decoded(name)
    if isinstance(value, dict) and {"text", "label"} <= set(value):
        value = dict(zip(map(str, value["label"]), value["text"], strict=False))
    if isinstance(value, list) and value and all(isinstance(v, dict) and len(v) == 1 for v in value):
        value = {key: words for one in value for key, words in one.items()}
    if isinstance(value, list):
        value = dict(zip(ascii_uppercase, value, strict=False)) if len(value) <= len(ascii_uppercase) else None
    if not isinstance(value, dict) or len(value) < 2:
        raise UsageError(
            f"{row.where}: no options; give a list of at least two, or {{letter: text}}; it has: {row.has}"
        )
    if any(words is None or isinstance(words, dict | list) or not str(words).strip() for words in value.values()):
        raise UsageError(f"{row.where}: an option is empty, or no text")
    letters = {str(key).strip().upper(): str(words) for key, words in value.items()}
    if len(letters) < len(value):
        raise UsageError(f"{row.where}: two options have the same letter")
    return letters


def _letter(row: Row, answer: JSON, letters: dict[str, str]) -> str:
    """The right letter: given as such, as its text, or, where no label is a number, as its number from 0."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        numbered = any(label.isdecimal() for label in letters)
        if not numbered and 0 <= answer < len(letters):
            return list(letters)[answer]
        if str(answer) in letters:
            return str(answer)
    if isinstance(answer, str):
        if answer.strip().upper() in letters:
            return answer.strip().upper()
        meant = [letter for letter, words in letters.items() if _folded(words) == _folded(answer)]
        if len(meant) == 1:
            return meant[0]
    raise UsageError(f"{row.where}: the answer {answer!r} is none of the options {', '.join(letters)}")
