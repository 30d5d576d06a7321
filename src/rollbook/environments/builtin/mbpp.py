"""MBPP: short Python functions to write, each with three tests (Austin et al., 2021); whole, or verified by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.builtin.humaneval import assemble_program
from rollbook.environments.data_rows import DataRow, PromptTemplate, choose_template, rows
from rollbook.environments.registry import suggest_names
from rollbook.environments.sandboxed import Sandboxed, marks
from rollbook.errors import UsageError
from rollbook.sandbox import Limits

_FOLDER = Path(__file__).with_name("data")
SETS = {"whole": _FOLDER / "mbpp.jsonl.gz", "sanitized": _FOLDER / "mbpp_sanitized.jsonl.gz"}

BROKEN = (367, 927)
"""Problems whose tests use a class `Node` that neither the problem nor the tests define: no answer can be judged."""

PAIR_SETUP = "def Pair(a, b): return (a, b)"
PAIR_CLASS = "class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n\n"
PAIR_WRAPPER = "\n_given = {entry}\ndef {entry}(pairs, n):\n    return _given([Pair(*pair) for pair in pairs], n)\n"
"""Problem 601 has tests that make objects of the code's own class: they send plain data, from which the code's side
makes the objects. The class is there if the answer does not define its own."""

BOOL_WRAPPER = "\n_given = {entry}\ndef {entry}(*args):\n    return bool(_given(*args))\n"
"""For tests that only ask whether a value is true: it may be an object such as a match, which stays where it is."""

_CALLED = re.compile(r"(\w+)\s*\(")
_IMPORT = re.compile(r"^(?:import|from) .+", re.MULTILINE)
_DEFINED = re.compile(r"^(def|class) (\w+)", re.MULTILINE)


class MBPP(Sandboxed):
    """Functions to write: `mbpp` asks the whole set, `mbpp:sanitized` the 427 problems that were verified by hand.

    The tests are shown, as in the paper. They run out of the code's reach: an early exit is no pass.
    """

    description = "972 Python functions to write, or mbpp:sanitized with 427, run against tests (Austin et al., 2021)"
    kind = "benchmark"
    prompt_template = (
        "{text}\n\nYour code must pass these tests:\n\n```python\n{public_tests}\n```\n\n"
        "Answer with the whole Python code, imports included, in one ```python block."
    )
    row_fields: ClassVar = {
        "text": "the problem",
        "public_tests": "its tests, one assert a line",
        "entry": "the function that the tests call",
        "task_id": "its number in MBPP",
    }

    def __init__(
        self, name: str = "whole", template: str | None = None, seconds: float = 5.0, memory_mb: int = 512
    ) -> None:
        if name not in SETS:
            raise UsageError(f"mbpp has no set {name!r}{suggest_names(name, SETS)}")
        self._rows, self._template = SETS[name], template
        self.limits = Limits(seconds=seconds, memory_mb=memory_mb)
        if name == "whole":
            numbers = " and ".join(map(str, BROKEN))
            self.notes = [f"mbpp: problems {numbers} are left out: their tests use a class that nobody defines"]

    def tasks(self) -> Iterator[Task]:
        """Yield the problems in order, under their own numbers: mbpp-1 to mbpp-974."""
        template = choose_template(self._template, self.prompt_template)
        for row in rows(self._rows):
            if row.values["task_id"] not in BROKEN:
                yield _make_task(row, template)

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if the code passes every test of the problem, else 0."""
        code = assemble_program(rollout.text, "", task.entry)
        if code is None:
            return Score(0.0, info={"reason": "no code"})
        program = f"{task.before}{code}{task.after}"
        verdict = await self.grader.function(
            program, task.public_tests, task.entry, setup=task.setup, is_class=task.fields["is_class"]
        )
        return Score(float(verdict.passed), info=marks(verdict))

    def solution(self, task: Task) -> str | None:
        """Return the reference solution."""
        return f"```python\n{task.fields['solution']}\n```"


def _make_task(row: DataRow, template: PromptTemplate) -> Task:
    values = row.values
    code, tests = values["code"].replace("\r\n", "\n"), "\n".join(values["test_list"])
    kind, entry = _find_entry(code, tests)
    fields: dict[str, JSON] = {
        "text": values.get("text") or values.get("prompt"),
        "public_tests": tests,
        "entry": entry,
        "task_id": values["task_id"],
    }
    has_pairs = re.search(r"\bPair\(", tests) is not None
    wrapper = PAIR_WRAPPER if has_pairs else BOOL_WRAPPER if _asks_truth(tests, entry) else ""
    return Task(
        f"mbpp-{values['task_id']}",
        template.fill(fields, row.where),
        **fields,
        is_class=kind == "class",
        setup="\n".join([*_IMPORT.findall(code), *values.get("test_imports", []), *([PAIR_SETUP] * has_pairs)]),
        before=PAIR_CLASS if has_pairs else "",
        after=wrapper.format(entry=entry),
        solution=code,
    )


def _find_entry(code: str, tests: str) -> tuple[str, str]:
    """Return what the tests call, of all that the reference defines: `def` or `class`, and its name."""
    defined = {name: kind for kind, name in _DEFINED.findall(code)}
    name = next(name for name in _CALLED.findall(tests) if name in defined)
    return defined[name], name


def _asks_truth(tests: str, entry: str) -> bool:
    """Whether every test is `assert f(...)` or `assert not f(...)`."""
    return all(map(re.compile(rf"assert (?:not )?{entry}\([^=<>]*\)").fullmatch, tests.split("\n")))
