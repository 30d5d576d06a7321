"""The environment: which letter occurs how often in a word."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollbook import Environment, Rollout, Score, Task

WORDS = ("strawberry", "banana", "mississippi", "bookkeeper", "committee", "parallel")
LETTERS = "abeiklmnor"


class LetterCount(Environment):
    """How often a letter occurs in a word, answered by a number."""

    def tasks(self) -> Iterator[Task]:
        """Yield one task for each word and letter."""
        for word in WORDS:
            for letter in LETTERS:
                prompt = f"How often does the letter {letter} occur in the word {word}? Answer with one number."
                yield Task(id=f"{word}-{letter}", prompt=prompt, answer=str(word.count(letter)))

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if the last number of the answer is right."""
        numbers = re.findall(r"\d+", rollout.text)
        answer = numbers[-1] if numbers else None
        return Score(float(answer == task.answer), answer=answer)

    def solution(self, task: Task) -> str:
        """Return the right answer."""
        return str(task.answer)
