"""Mathematics: rows with a problem and an answer, checked by algebra and, where the rule says no, by a judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.answers.comparison import canonicalize, is_same_answer, strip_delimiters
from rollbook.environments.answers.extraction import extract_math_answer, find_boxed
from rollbook.environments.data_rows import ANSWER_FIELDS, OTHER_ANSWER_FIELDS, DataRow, PromptTemplate, rows
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.environments.judge import Judge


INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."
SHORT_SOLUTION_CHARS = 200
"""A `solution` without a box is the answer itself (as in DAPO's processed rows) if it is no longer than this."""


class Math(Environment):
    """Problems from `data`: rows in the forms of AIME, MATH, DAPO, NeMo Gym, or with any problem and answer."""

    description = "problems of your own (--data: AIME, MATH, DAPO, NeMo Gym rows) with answers checked by algebra"

    def __init__(self, data: str, template: str | None = None) -> None:
        self._data, self._template = data, template

    def tasks(self) -> Iterator[Task]:
        """The problems in the order of their rows."""
        template = PromptTemplate.read(self._template) if self._template else None
        for row in rows(self._data):
            task = row.task(INSTRUCTION, template)
            task.answer = read_expected_answer(row)
            yield task

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """1 if the final answer means the same as the expected one, else 0."""
        answer = extract_math_answer(rollout.text)
        right = float(answer is not None and is_same_answer(answer, task.answer))
        return Score(right, parts={"rule": right}, answer=answer and canonicalize(answer))

    async def appeal(self, task: Task, rollout: Rollout, score: Score, judge: Judge) -> Score:
        """Where the rule says no to an answer, whether a judge finds it the same, whichever way round it is asked."""
        if score.reward or score.answer is None:
            return score
        ruling = await judge.same(question_text(task), task.answer, score.answer)
        parts = {**score.parts, "judge": ruling.share}
        return Score(float(ruling.same), parts, score.answer, {**score.info, "judge": ruling.words})

    def solution(self, task: Task) -> str | None:
        """The reference solution if it ends in a box, else the bare answer in one."""
        written = task.fields.get("solution")
        if (
            isinstance(written, str)
            and (inside := find_boxed(written)) is not None
            and is_same_answer(inside, task.answer)
        ):
            return written
        return f"The answer is \\boxed{{{task.answer}}}."


def question_text(task: Task) -> str:
    """The problem as a judge is shown it."""
    asked = task.fields.get("question") or task.fields.get("problem")
    return asked if isinstance(asked, str) else task.prompt.removesuffix(INSTRUCTION).strip()


def read_expected_answer(row: DataRow) -> str:
    """The answer of a row, wherever its form has it; a UsageError that names the row if there is none."""
    value = _find_answer(row)
    if value is None or isinstance(value, dict | list | bool):
        wanted = "answer, expected_answer, reward_model.ground_truth, or a solution with \\boxed{}"
        raise UsageError(f"{row.where}: no {wanted}; it has: {row.field_names}")
    text = str(value).rpartition("####")[2].strip()
    final = find_boxed(text)
    found = strip_delimiters(text if final is None else final)
    if not found:
        raise UsageError(f"{row.where}: the answer is empty")
    return found


def _find_answer(row: DataRow) -> JSON:
    name = row.first(*ANSWER_FIELDS, *OTHER_ANSWER_FIELDS)
    if name is not None:
        return row.values[name]
    rewarded = row.values.get("reward_model")
    if isinstance(rewarded, dict) and rewarded.get("ground_truth") is not None:
        return _unwrap_single(rewarded["ground_truth"])
    worked = row.values.get("solution", row.values.get("Solution"))
    if isinstance(worked, str):
        final = find_boxed(worked)
        return final if final is not None else worked if len(worked) <= SHORT_SOLUTION_CHARS else None
    return worked


def _unwrap_single(truth: JSON) -> JSON:
    """Some rows hold a list of one answer, as JSON or as text of it."""
    if isinstance(truth, str) and truth.startswith('["') and truth.endswith('"]'):
        from rollbook.core import decode

        truth = decode(truth)
    return truth[0] if isinstance(truth, list) and len(truth) == 1 else truth
