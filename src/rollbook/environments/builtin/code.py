"""Programs for problems with tests: competitive programming, rows of LiveCodeBench, NeMo Gym's code_gen, APPS, TACO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import msgspec

from rollbook.core import Rollout, Score, Task
from rollbook.environments.answers.extraction import last_block
from rollbook.environments.builtin.code_tests import CodeTestRunner, parse_rule, read_tests
from rollbook.environments.data_rows import DataRow, PromptTemplate, read_tasks
from rollbook.environments.sandboxed import Sandboxed, marks
from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Spaces

PROGRAM_INSTRUCTION = (
    "Write a Python program that reads from standard input and writes to standard output. "
    "Answer with the whole program in one ```python block."
)
FUNCTION_INSTRUCTION = (
    "Answer with the whole Python function `{entry}` (or class Solution with it) in one ```python block."
)

DROPPED_FIELDS = (
    "unit_tests",
    "input_output",
    "verifier_metadata",
    "tests",
    "public_test_cases",
    "private_test_cases",
    "question_content",
)


class Code(Sandboxed):
    """Rows with tests, from `data`. Each test has its own limits; `reward` is `all` or the `fraction` that passed.

    `spaces`, `tolerance` and `case` define when an output equals the expected one; a row's own `rule` overrides them.
    """

    kind = "rows"
    description = "programming problems with stdin-stdout or function-call tests, from --data, run in the sandbox"
    row_fields: ClassVar = {
        "prompt": "the problem; also called question, problem, question_content or messages",
        "tests": "a list of {input, output}; also unit_tests, input_output or public_test_cases",
        "entry": "optional: the function to call; without it tests are standard input and output",
        "solution": "optional: a program that passes, used by rollbook check",
    }
    example_row: ClassVar = {
        "prompt": "Read a number and print its double.",
        "tests": [{"input": "2\n", "output": "4\n"}],
        "solution": "print(2 * int(input()))",
    }

    def __init__(
        self,
        data: str | None = None,
        template: str | None = None,
        reward: Literal["all", "fraction"] = "all",
        seconds: float = 6.0,
        memory_mb: int = 1024,
        total_seconds: float = 25.0,
        spaces: Spaces = "lines",
        tolerance: float | None = None,
        case: bool = True,
    ) -> None:
        self._data, self._template = data, template
        if reward not in ("all", "fraction"):
            raise UsageError(f"reward={reward!r}: all or fraction")
        if not total_seconds > 0:
            raise UsageError(f"total_seconds={total_seconds}: give a positive number")
        self._fraction, self._total_s = reward == "fraction", total_seconds
        self.limits = Limits(seconds=seconds, memory_mb=memory_mb)
        self._rule = parse_rule({"spaces": spaces, "tolerance": tolerance, "case": case}, "code")

    def tasks(self) -> Iterator[Task]:
        """Yield the problems in the order of their file."""
        if self._data is None:
            raise UsageError("code has no problems of its own: give rows with tests by --data FILE")
        yield from read_tasks(self._data, self._template, _make_task)

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if every test passes, else 0 at the first that does not; or the fraction that passes."""
        code = last_block(rollout.text)
        if code is None:
            return Score(0.0, info={"reason": "no code"})
        rule = msgspec.structs.replace(self._rule, **(task.fields.get("rule") or {}))
        runner = CodeTestRunner(self.grader, code, task.entry, rule, self.limits, self._total_s)
        passed, verdict = await runner.run(task.cases, stop=not self._fraction)
        count = len(task.cases)
        reward = passed / count if self._fraction else float(passed == count)
        return Score(reward, info={**marks(verdict), "passed": passed, "tests": count})

    def solution(self, task: Task) -> str | None:
        """Return a solution that came with the row."""
        code = task.fields.get("solution") or next(iter(task.fields.get("solutions") or []), None)
        return f"```python\n{code}\n```" if isinstance(code, str) else None


def _make_task(row: DataRow, template: PromptTemplate | None) -> Task:
    tests = read_tests(row)
    task = make_task(row, tests.entry, template)
    task.fields = {k: v for k, v in task.fields.items() if k not in DROPPED_FIELDS}
    task.fields["cases"] = [list(pair) for pair in tests.pairs]
    task.fields["entry"] = tests.entry
    parse_rule(task.fields.get("rule") or {}, f"{row.where}: rule")
    return task


def make_task(row: DataRow, entry: str, template: PromptTemplate | None = None) -> Task:
    """Return the task that a row asks, without its tests; the starter code of a LiveCodeBench row is shown."""
    values = dict(row.values)
    if "question_content" in values and "prompt" not in values:
        starter = values.get("starter_code")
        block = f"\n\n```python\n{starter.rstrip()}\n```" if isinstance(starter, str) and starter.strip() else ""
        values["prompt"] = f"{values['question_content']}{block}"
    id_field = DataRow(row.path, row.line, values).first("id", "question_id", "hash_id")
    if id_field is not None:
        values["id"] = values[id_field]
    return DataRow(row.path, row.line, values).task(
        FUNCTION_INSTRUCTION.format(entry=entry) if entry else PROGRAM_INSTRUCTION, template
    )
