"""Mathematics: any rows with a problem and an answer, checked by algebra and, where the rule says no, by a judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.answers import boxed, canonical
from rollbook.environments.conclusion import bare, concluded, same
from rollbook.environments.environment import Environment
from rollbook.environments.rows import ANSWERS, OTHER_ANSWERS, Row, rows
from rollbook.environments.template import Template
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.environments.court import Judge

INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."
SHORT = 200
"""A `solution` without a box is the answer itself (as in DAPO's processed rows) if it is no longer than this."""


class Math(Environment):
    """Problems from `data`: rows in the forms of AIME, MATH, DAPO, NeMo Gym, or with any problem and answer."""

    description = "problems of your own (--data: AIME, MATH, DAPO, NeMo Gym rows) with answers checked by algebra"

    def __init__(self, data: str, template: str | None = None) -> None:
        self._data, self._template = data, template

    def tasks(self) -> Iterator[Task]:
        """The problems in the order of their rows."""
        template = Template.read(self._template) if self._template else None
        for row in rows(self._data):
            task = row.task(INSTRUCTION, template)
            task.answer = expected(row)
            yield task

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """1 if the final answer means the same as the expected one, else 0."""
        answer = concluded(rollout.text)
        right = float(answer is not None and same(answer, task.answer))
        return Score(right, parts={"rule": right}, answer=answer and canonical(answer))

    async def appeal(self, task: Task, rollout: Rollout, score: Score, judge: Judge) -> Score:
        """Where the rule says no to an answer, whether a judge finds it the same, whichever way round it is asked."""
        if score.reward or score.answer is None:
            return score
        ruling = await judge.same(question(task), task.answer, score.answer)
        parts = {**score.parts, "judge": ruling.share}
        return Score(float(ruling.same), parts, score.answer, {**score.info, "judge": ruling.words})

    def solution(self, task: Task) -> str | None:
        """The reference solution if it ends in a box, else the bare answer in one."""
        written = task.fields.get("solution")
        if isinstance(written, str) and (inside := boxed(written)) is not None and same(inside, task.answer):
            return written
        return f"The answer is \\boxed{{{task.answer}}}."


def question(task: Task) -> str:
    """The problem as a judge is shown it."""
    asked = task.fields.get("question") or task.fields.get("problem")
    return asked if isinstance(asked, str) else task.prompt.removesuffix(INSTRUCTION).strip()


def expected(row: Row) -> str:
    """The answer of a row, wherever its form has it; a UsageError that names the row if there is none."""
    value = _answer(row)
    if value is None or isinstance(value, dict | list | bool):
        wanted = "answer, expected_answer, reward_model.ground_truth, or a solution with \\boxed{}"
        raise UsageError(f"{row.where}: no {wanted}; it has: {row.has}")
    text = str(value).rpartition("####")[2].strip()
    final = boxed(text)
    found = bare(text if final is None else final)
    if not found:
        raise UsageError(f"{row.where}: the answer is empty")
    return found


def _answer(row: Row) -> JSON:
    name = row.first(*ANSWERS, *OTHER_ANSWERS)
    if name is not None:
        return row.values[name]
    rewarded = row.values.get("reward_model")
    if isinstance(rewarded, dict) and rewarded.get("ground_truth") is not None:
        return _only(rewarded["ground_truth"])
    worked = row.values.get("solution", row.values.get("Solution"))
    if isinstance(worked, str):
        final = boxed(worked)
        return final if final is not None else worked if len(worked) <= SHORT else None
    return worked


def _only(truth: JSON) -> JSON:
    """Some rows hold a list of one answer, as JSON or as text of it."""
    if isinstance(truth, str) and truth.startswith('["') and truth.endswith('"]'):
        from rollbook.core.json import decode

        truth = decode(truth)
    return truth[0] if isinstance(truth, list) and len(truth) == 1 else truth
