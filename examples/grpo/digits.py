"""An environment that a model can learn from nothing: repeat the digit that is named."""

import random
import time
from collections.abc import Iterator

from rollbook import Environment, Rollout, Task


class Digits(Environment):
    """The reward is the share of the digit in the answer. The verifier hangs on an answer of every `hangs`-th task."""

    def __init__(self, size: int = 1_000_000, seed: int = 0, hangs: int = 0) -> None:
        self._size, self._seed, self._hangs = size, seed, hangs

    def tasks(self) -> Iterator[Task]:
        """Yield a digit after some letters that mean nothing."""
        for number in range(self._seed, self._seed + self._size):
            dice = random.Random(number)
            digit, noise = str(dice.randrange(10)), "".join(dice.choices("say ", k=6))
            hangs = bool(self._hangs) and number % self._hangs == 0
            yield Task(id=f"digit-{number}", prompt=noise + digit, answer=digit, hangs=hangs)

    def verify(self, task: Task, rollout: Rollout) -> float:
        """Return the share of the right digit; nothing said is nothing right."""
        if task.fields["hangs"] and rollout.sample == 2:
            time.sleep(3600)
        return reward(rollout.text, str(task.answer))


def reward(text: str, digit: str) -> float:
    """Return the share of a digit in a text."""
    return text.count(digit) / len(text) if text else 0.0
