"""GSM8K: the 1,319 grade school word problems of the test set (Cobbe et al., 2021), or rows of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from rollbook.core import Rollout, Score, Task
from rollbook.environments.answers.comparison import canonicalize, is_equal
from rollbook.environments.answers.extraction import extract_answer
from rollbook.environments.data_rows import DataRow, PromptTemplate, read_tasks
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

INSTRUCTION = "Reason step by step, then give the final number in \\boxed{}."

_SHIPPED_DATA = Path(__file__).with_name("data") / "gsm8k_test.jsonl.gz"


class GSM8K(Environment):
    """Word problems whose answer is one number; `data` has rows to ask instead, `template` is for their prompts."""

    kind = "benchmark"
    description = "1,319 grade school word problems, answered by a number (test set of Cobbe et al., 2021)"
    row_fields: ClassVar = {
        "question": "the problem; also called problem, prompt or messages",
        "answer": "the number, or a solution that ends in #### and the number; also called expected_answer",
    }
    example_row: ClassVar = {
        "question": "Ann has 3 apples and buys 4. How many has she?",
        "answer": "3 + 4 = 7\n#### 7",
    }

    def __init__(self, data: str | None = None, template: str | None = None) -> None:
        self._template = template
        self._data = data  # read only by tasks(): processes that only verify do not need the file

    def tasks(self) -> Iterator[Task]:
        """Yield the problems in the order of their file."""
        return read_problems(self._data, self._template, _make_task)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 for the right number, however it is written, else 0."""
        answer = extract_answer(rollout.text)
        right = answer is not None and is_equal(answer, task.answer)
        return Score(float(right), answer=answer)

    def solution(self, task: Task) -> str | None:
        """Return the reference solution, which ends in `#### N`; just the answer if the row has no solution."""
        return str(task.fields.get("solution") or f"#### {task.answer}")


def read_problems(
    data: str | None, template: str | None, make_task: Callable[[DataRow, PromptTemplate | None], Task]
) -> Iterator[Task]:
    """Yield the rows of a file as tasks; without a file, the GSM8K problems, with their numbers as ids."""
    for index, task in enumerate(read_tasks(data or _SHIPPED_DATA, template, make_task)):
        if data is None:
            task.id = f"gsm8k-{index:04d}"
        yield task


def _make_task(row: DataRow, template: PromptTemplate | None) -> Task:
    task = row.task(INSTRUCTION, template)
    if task.answer is None:
        raise UsageError(f"{row.where}: no answer; gsm8k rows need an answer or expected_answer")
    reference = str(task.answer)
    worked, hashes, final = reference.rpartition("####")
    task.answer = canonicalize(final)
    if hashes and worked.strip():
        task.fields.setdefault("solution", reference)
    return task
