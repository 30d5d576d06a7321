"""Sums, from the class itself or from rows that `rollbook curate` wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollbook import Environment, Rollout, Task
from rollbook.environments import rows


class Sums(Environment):
    """The sum of a number with itself."""

    def __init__(self, data: str | None = None) -> None:
        self.data = data

    def tasks(self) -> Iterator[Task]:
        """Yield the rows of `--data`, or 40 sums."""
        if self.data:
            yield from (row.task() for row in rows(self.data))
            return
        for i in range(40):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task: Task, rollout: Rollout) -> bool:
        """Accept the right number at the end of the answer."""
        return re.findall(r"\d+", rollout.text)[-1:] == [task.answer]
