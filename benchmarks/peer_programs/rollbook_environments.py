"""The tasks of `benchmarks/peers.py` as Rollbook environments: sums, sums with a tool, a function with its tests."""

from __future__ import annotations

from collections.abc import Iterator

from rollbook import Environment, Rollout, Task, tool
from rollbook.environments.answers.extraction import last_block
from rollbook.environments.sandboxed import Sandboxed
from rollbook.sandbox import Limits


def draw_sums(count: int) -> Iterator[Task]:
    for number in range(count):
        yield Task(id=f"sum-{number}", prompt=f"What is {number} + {number + 1}?", answer=str(2 * number + 1))


class Single(Environment):
    """One call; the answer is what follows ####."""

    def __init__(self, count: int) -> None:
        self.count = count

    def tasks(self) -> Iterator[Task]:
        return draw_sums(self.count)

    def verify(self, task: Task, rollout: Rollout) -> bool:
        return rollout.text.rpartition("#### ")[2] == task.answer


class Tools(Single):
    """Four calls of a tool, then the answer."""

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class Code(Sandboxed):
    """A function that is run against a test in the sandbox."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.limits = Limits(seconds=3.0)

    def tasks(self) -> Iterator[Task]:
        for number in range(self.count):
            yield Task(
                id=f"add-{number}",
                prompt="Write a function add(a, b).",
                tests=f"assert add({number}, 1) == {number + 1}",
            )

    async def verify(self, task: Task, rollout: Rollout) -> float:
        return float((await self.grader.function(last_block(rollout.text) or "", task.tests, "add")).passed)
