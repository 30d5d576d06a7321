"""MATH-500: the 500 problems of MATH (Hendrycks et al., 2021) that PRM800K (Lightman et al., 2023) holds out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from rollbook.core import Task
from rollbook.environments.builtin.math import INSTRUCTION, Math, make_math_task
from rollbook.environments.data_rows import choose_template, rows

_SHIPPED_DATA = Path(__file__).with_name("data") / "math500.jsonl.gz"


class Math500(Math):
    """Competition problems of seven subjects and five levels; reports have numbers for each subject.

    Only a marked answer counts: in a box, in tags, or after "the answer is"; a problem can end in its own answer.
    """

    description = "500 competition problems of MATH, checked by algebra (Hendrycks et al., 2021; Lightman et al., 2023)"
    kind = "benchmark"
    prompt_template = f"{{problem}}\n\n{INSTRUCTION}"
    report_by = "subject"
    row_fields: ClassVar = {
        "problem": "the problem, in TeX",
        "subject": "Algebra, Geometry, ...: seven of them",
        "level": "how hard it is, from 1 to 5",
        "unique_id": "where MATH has it: test/precalculus/807.json",
    }
    example_row: ClassVar = {}
    _marked_only = True

    def __init__(self, template: str | None = None) -> None:
        self._template = template

    def tasks(self) -> Iterator[Task]:
        """Yield the problems in the order of their file, under the names that MATH gives them."""
        template = choose_template(self._template, self.prompt_template)
        for row in rows(_SHIPPED_DATA):
            yield make_math_task(row, template)
