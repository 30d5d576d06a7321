"""Sums: the tasks that the agent program solves."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollbook import Environment, Rollout, Task


class Sums(Environment):
    """The sum of a number with itself."""

    def tasks(self) -> Iterator[Task]:
        """Yield 40 sums."""
        for i in range(40):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task: Task, rollout: Rollout) -> bool:
        """Accept the right number at the end of the answer."""
        return re.findall(r"\d+", rollout.text)[-1:] == [task.answer]
