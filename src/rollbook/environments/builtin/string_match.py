"""String match: rows whose answer is a text, compared exactly, without regard to case, or as a part."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import ClassVar

from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.answers.comparison import compile_text_commands
from rollbook.environments.answers.extraction import find_boxed, find_tagged, strip_thinking
from rollbook.environments.data_rows import DataRow, PromptTemplate, read_tasks
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

MODES = ("exact", "folded", "contains")

_TEX = compile_text_commands("mathbf")
_EDGES = " \t\n.,;:!?\"'`*。、「」『』«»"
_QUOTES = str.maketrans(dict.fromkeys("“”„", '"') | dict.fromkeys("‘’‚", "'"))
_BRACKETS = ("()", "[]")
_RAISED = ("<super>", "<sub>")
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Letters of scripts that put no spaces between words (Thai, Lao, Burmese, Khmer, Japanese, Chinese)."""
_LETTER = rf"[^\W{_UNSPACED}]"


class StringMatch(Environment):
    """Texts from `data`. `mode`: exact (except white space around), folded (no case, no punctuation) or contains."""

    kind = "rows"
    description = "answers that are texts, from your own rows (--data): string_match?mode=exact, folded or contains"
    row_fields: ClassVar = {
        "question": "the question; also called problem, prompt or messages",
        "answer": "the accepted text, or a list of which any counts; also called expected_answer",
    }
    example_row: ClassVar = {"question": "What is the capital of France?", "answer": ["Paris", "Paris, France"]}

    def __init__(self, data: str, mode: str = "folded", template: str | None = None) -> None:
        if mode not in MODES:
            raise UsageError(f"string_match: mode={mode}; give {', '.join(MODES)}")
        self._data, self._mode, self._template = data, mode, template

    def tasks(self) -> Iterator[Task]:
        """Yield the questions in the order of their rows."""
        return read_tasks(self._data, self._template, _make_task)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if the answer is one of the accepted texts, else 0."""
        answer = read_final_text(rollout.text)
        return Score(float(any(matches(answer, text, self._mode) for text in task.answer)), answer=answer[:200])

    def solution(self, task: Task) -> str | None:
        """Return the first accepted text."""
        return str(task.answer[0])


def _make_task(row: DataRow, template: PromptTemplate | None) -> Task:
    task = row.task("", template)
    task.answer = _read_accepted(row, task.answer)
    return task


def read_final_text(text: str) -> str:
    r"""Return the final answer of a text: in <answer> tags, else in \boxed{}, else all of it without thoughts.

    >>> read_final_text("<think>Hm</think> Paris"), read_final_text("It is <answer>Paris</answer>.")
    ('Paris', 'Paris')
    >>> read_final_text(r"\boxed{Paris}")
    'Paris'
    """
    text = strip_thinking(text)
    tagged = find_tagged(text)
    inside = tagged[-1] if tagged else find_boxed(text)
    return (text if inside is None else inside).strip()


def matches(answer: str, accepted: str, mode: str) -> bool:
    """Whether an answer matches an accepted text in one of the three modes.

    >>> [matches("paris.", "Paris", mode) for mode in MODES], matches("It is Paris", "paris", "contains")
    ([False, True, True], True)
    """
    if mode == "exact":
        return answer == accepted.strip()
    left, right = normalize_text(answer), normalize_text(accepted)
    if mode == "folded":
        return left == right
    before = "" if re.match(f"[{_UNSPACED}]", right) else f"(?<!{_LETTER})"
    after = "" if re.match(f"[{_UNSPACED}]", right[-1:]) else f"(?!{_LETTER})"
    return re.search(f"{before}{re.escape(right)}{after}", left) is not None


def normalize_text(text: str) -> str:
    r"""Return a text in one case, without repeated spaces, surrounding punctuation and TeX.

    >>> normalize_text("(São  Paulo)."), normalize_text(r"\text{Paris}"), normalize_text("2⁵")
    ('são paulo', 'paris', '2⁵')
    """
    text = " ".join(_normalize_characters(_TEX.sub(r"\1", text)).translate(_QUOTES).casefold().split()).strip(_EDGES)
    while len(text) > 2 and text[0] + text[-1] in _BRACKETS:
        text = text[1:-1].strip(_EDGES)
    return text


def _normalize_characters(text: str) -> str:
    """Normalize each character, but keep superscripts: 2⁵ is not 25."""
    if text.isascii():
        return text
    parts = (c if unicodedata.decomposition(c).startswith(_RAISED) else unicodedata.normalize("NFKC", c) for c in text)
    return unicodedata.normalize("NFC", "".join(parts))


def _read_accepted(row: DataRow, answer: JSON) -> list[str]:
    """Return the accepted texts: one, or a list of which any counts; none of them may be empty."""
    answers = answer if isinstance(answer, list) else [answer]
    texts = [str(one) for one in answers if isinstance(one, str | int | float) and not isinstance(one, bool)]
    if len(texts) < len(answers) or not texts or not all(normalize_text(text) for text in texts):
        raise UsageError(
            f"{row.where}: the answer must be text or a list of texts, and not empty; it has: {row.field_names}"
        )
    return texts
