"""The environments of the chaos test: sums, judged in environment processes and in the sandbox.

Some tasks have a verifier that always raises: they must fail, and never get a reward.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollbook import Environment, Rollout, Score, Task
from rollbook.environments import Sandboxed

TASKS = 45
BROKEN_EVERY = 15


def make_tasks(name: str) -> Iterator[Task]:
    for i in range(TASKS):
        broken = i % BROKEN_EVERY == BROKEN_EVERY - 1
        yield Task(id=f"{name}-{i}", prompt=f"What is {i} + {7 * i}?", answer=str(8 * i), broken=broken)


class Sums(Environment):
    """Judged in an environment process."""

    def tasks(self) -> Iterator[Task]:
        return make_tasks("sum")

    def verify(self, task: Task, rollout: Rollout) -> bool:
        if task.fields["broken"]:
            raise ValueError("this verifier is broken")
        return rollout.text.endswith(f" {task.answer}.")


class Programs(Sandboxed):
    """Judged by a program in the sandbox."""

    def tasks(self) -> Iterator[Task]:
        return make_tasks("program")

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        if task.fields["broken"]:
            raise ValueError("this verifier is broken")
        number = rollout.text.rstrip(".").split()[-1]
        result = await self.box.run(f"print({number} == {task.answer})")
        return Score(float(result.stdout.strip() == "True"), answer=number)
