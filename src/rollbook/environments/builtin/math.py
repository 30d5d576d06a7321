"""Mathematics: rows with a problem and an answer, checked by algebra and, if algebra finds no match, by a judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from rollbook.core import JSON, Rollout, Score, Task, decode
from rollbook.environments.answers.comparison import canonicalize, is_same_answer, strip_delimiters
from rollbook.environments.answers.extraction import extract_math_answer, find_boxed
from rollbook.environments.data_rows import ANSWER_FIELDS, OTHER_ANSWER_FIELDS, DataRow, PromptTemplate, read_tasks
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.environments.judge import Judge


INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."
SHORT_SOLUTION_CHARS = 200
"""A `solution` without a box is the answer itself (as in DAPO's processed rows) if it is no longer than this."""


class Math(Environment):
    """Problems from `data`: rows in the forms of AIME, MATH, DAPO, NeMo Gym, or with any problem and answer."""

    kind = "rows"
    description = "problems of your own (--data: AIME, MATH, DAPO, NeMo Gym rows) with answers checked by algebra"
    row_fields: ClassVar = {
        "problem": "the problem; also called question, prompt or messages",
        "answer": "the right answer; also expected_answer, reward_model.ground_truth, or the box of a solution",
    }
    example_row: ClassVar = {"problem": "What is $\\frac{1}{2} + \\frac{1}{4}$?", "answer": "\\frac{3}{4}"}

    _marked_only: ClassVar[bool] = False

    def __init__(self, data: str, template: str | None = None) -> None:
        self._data, self._template = data, template

    def tasks(self) -> Iterator[Task]:
        """Yield the problems in the order of their rows."""
        return read_tasks(self._data, self._template, make_math_task)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if the final answer means the same as the expected one, else 0."""
        answer = extract_math_answer(rollout.text, marked_only=self._marked_only)
        right = float(answer is not None and is_same_answer(answer, task.answer))
        return Score(right, parts={"rule": right}, answer=answer and canonicalize(answer))

    async def appeal(self, task: Task, rollout: Rollout, score: Score, judge: Judge) -> Score:
        """Ask a judge about an answer that algebra did not accept; both orders of the answers must agree."""
        if score.reward or score.answer is None:
            return score
        result = await judge.same(question_text(task), task.answer, score.answer)
        parts = {**score.parts, "judge": result.share}
        return Score(float(result.same), parts, score.answer, {**score.info, "judge": result.words})

    def solution(self, task: Task) -> str | None:
        """Return the reference solution if it ends in a box with the answer, else just the answer in a box."""
        reference = task.fields.get("solution")
        boxed = find_boxed(reference) if isinstance(reference, str) else None
        if boxed is not None and is_same_answer(boxed, task.answer):
            return str(reference)
        return f"The answer is \\boxed{{{task.answer}}}."


def make_math_task(row: DataRow, template: PromptTemplate | None) -> Task:
    """Return the task of a row, with its expected answer in one form."""
    task = row.task(INSTRUCTION, template)
    task.answer = read_expected_answer(row)
    return task


def question_text(task: Task) -> str:
    """Return the problem as it is shown to a judge."""
    question = task.fields.get("question") or task.fields.get("problem")
    return question if isinstance(question, str) else task.prompt.removesuffix(INSTRUCTION).strip()


def read_expected_answer(row: DataRow) -> str:
    """Return the answer of a row in any of the known forms; a UsageError names a row without one."""
    value = _find_answer(row)
    if value is None or isinstance(value, dict | list | bool):
        wanted = "answer, expected_answer, reward_model.ground_truth, or a solution with \\boxed{}"
        raise UsageError(f"{row.where}: no {wanted}; it has: {row.field_names}")
    text = str(value).rpartition("####")[2].strip()
    boxed = find_boxed(text)
    answer = strip_delimiters(text if boxed is None else boxed)
    if not answer:
        raise UsageError(f"{row.where}: the answer is empty")
    return answer


def _find_answer(row: DataRow) -> JSON:
    name = row.first(*ANSWER_FIELDS, *OTHER_ANSWER_FIELDS)
    if name is not None:
        return row.values[name]
    reward_model = row.values.get("reward_model")
    if isinstance(reward_model, dict) and reward_model.get("ground_truth") is not None:
        return _unwrap_single(reward_model["ground_truth"])
    solution = row.values.get("solution", row.values.get("Solution"))
    if isinstance(solution, str):
        boxed = find_boxed(solution)
        return boxed if boxed is not None else solution if len(solution) <= SHORT_SOLUTION_CHARS else None
    return solution


def _unwrap_single(truth: JSON) -> JSON:
    """Return the answer of a list of one, which some rows have, as JSON or as JSON text."""
    if isinstance(truth, str) and truth.startswith('["') and truth.endswith('"]'):
        truth = decode(truth)
    return truth[0] if isinstance(truth, list) and len(truth) == 1 else truth
