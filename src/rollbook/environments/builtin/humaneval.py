"""HumanEval: the 164 programming problems of Chen et al., 2021: functions to complete, each with its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rollbook.core import Rollout, Score, Task
from rollbook.environments.answers.extraction import last_block, strip_thinking
from rollbook.environments.data_rows import rows
from rollbook.environments.sandboxed import Sandboxed, marks
from rollbook.sandbox import Limits

INSTRUCTION = "Complete this Python function. Answer with the whole function, imports included, in one ```python block."

_SHIPPED_DATA = Path(__file__).with_name("data") / "humaneval.jsonl.gz"
_CODE = re.compile(r"^(?:def|async def|class|from|import|@)\b|^@", re.MULTILINE)
_NEXT_STATEMENT = re.compile(r"^\S", re.MULTILINE)


class HumanEval(Sandboxed):
    """Functions to complete. The tests run out of the code's reach: an early exit or a forged verdict does not pass."""

    kind = "benchmark"
    description = "164 Python functions to complete, run against their tests in the sandbox (Chen et al., 2021)"

    def __init__(self, seconds: float = 3.0, memory_mb: int = 512) -> None:
        self.limits = Limits(seconds=seconds, memory_mb=memory_mb)

    def tasks(self) -> Iterator[Task]:
        """Yield the problems in order, under their own names: HumanEval/0 to HumanEval/163."""
        for row in rows(_SHIPPED_DATA):
            values = row.values
            yield Task(
                values["task_id"],
                f"{INSTRUCTION}\n\n```python\n{values['prompt'].strip()}\n```",
                stem=values["prompt"],
                entry=values["entry_point"],
                tests=values["test"],
                solution=values["canonical_solution"],
            )

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if the function passes every test of the problem, else 0."""
        code = assemble_program(rollout.text, task.stem, task.entry)
        if code is None:
            return Score(0.0, info={"reason": "no code"})
        # The tests are set up with the problem's own text: helpers that they use are never the model's.
        verdict = await self.grader.function(code, task.tests, task.entry, check="check", setup=task.stem)
        return Score(float(verdict.passed), info=marks(verdict))

    def solution(self, task: Task) -> str | None:
        """Return the reference solution."""
        return f"```python\n{task.stem}{task.fields['solution']}```"


def assemble_program(text: str, stem: str, entry: str) -> str | None:
    """Return the program of an answer: a whole function after the problem's imports and helpers, or stem plus body."""
    block = last_block(text)
    code = strip_thinking(text) if block is None else block
    if not code.strip():
        return None
    if re.search(rf"^(?:async )?def {entry}\b|^{entry} *=", code, re.MULTILINE):
        start = _CODE.search(code) if block is None else None
        return f"{stem}\n{code[start.start() if start else 0 :]}"
    end = _NEXT_STATEMENT.search(code)
    body = code[: end.start()] if end and block is None else code
    return stem + body if body.strip() else None
