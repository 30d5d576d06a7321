"""Generated arithmetic problems in two parts that share no problem: one to train on, one held out.

    problems.py:Problems?generator=products&part=train&size=1000000&min_terms=2&max_terms=2

A problem is its numbers in any order: 3 * 14 and 14 * 3, and also 3 + 14 and 14 - 3, are the same problem. A hash of
the numbers decides the part, so that no order, sign or seed brings a held-out problem into the training. Every held-out
problem occurs once.
"""

import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from rollbook import Environment, Rollout, Score, Task
from rollbook.core import JSON
from rollbook.environments.builtin import ReasoningGym

HELD_OUT_SHARE = 8
"""One problem in so many is held out."""


class Problems(Environment):
    """The problems of a generator of `reasoning_gym` that belong to one part, scored by the generator."""

    def __init__(
        self, generator: str, part: Literal["train", "held_out"], size: int = 256, seed: int = 1, **settings: JSON
    ) -> None:
        self._part, self._size = part, size
        self._generator = ReasoningGym(generator, size=1_000_000, seed=seed, **settings)

    def tasks(self) -> Iterator[Task]:
        """Yield the first `size` problems of the part; those that are held out, each once."""
        return islice(self._draw(), self._size)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score with the generator's own scorer."""
        return self._generator.verify(task, rollout)

    def _draw(self) -> Iterator[Task]:
        seen = set()
        for task in self._generator.tasks():
            problem = read_problem(task)
            if (self._part == "held_out") is not is_held_out(problem) or problem in seen:
                continue
            if self._part == "held_out":
                seen.add(problem)
            yield task


def read_problem(task: Task) -> tuple[int, ...]:
    """Return the numbers of a prompt in ascending order."""
    return tuple(sorted(int(number) for number in re.findall(r"\d+", str(task.prompt))))


def is_held_out(problem: tuple[int, ...]) -> bool:
    """Return whether a problem is held out; the same in every process."""
    return zlib.crc32(repr(problem).encode()) % HELD_OUT_SHARE == 0
