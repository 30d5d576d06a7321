"""A quiz with graded rewards, answers and parts, and scripts that say what is answered sample by sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

QUIZ = """
from rollbook import Environment, Score, Task
from rollbook.environments.data_rows import rows


class Quiz(Environment):
    def __init__(self, data=None, tasks=3):
        self.data, self.count = data, tasks

    def tasks(self):
        if self.data:
            yield from (row.task() for row in rows(self.data))
            return
        for i in range(self.count):
            yield Task(id=f"q{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i), level=i % 2)

    def verify(self, task, rollout):
        text = rollout.text.strip()
        if text == "boom":
            raise RuntimeError("<b>cannot say</b>")
        right = text == task.answer
        return Score(float(right), parts={"right": right, "short": len(text) < 3}, answer=text or None)


class Graded(Quiz):
    def verify(self, task, rollout):
        text = rollout.text.strip()
        return Score(float(text) / 10, answer=text)


class Huge(Quiz):
    def verify(self, task, rollout):
        return Score(float(rollout.text), answer=rollout.text)


class Other(Quiz):
    pass
"""

ANSWERS = {"q0": ["0", "0", "0", "7"], "q1": ["2", "5", "5", ""], "q2": ["9", "9", "8", "4"]}
"""Four samples of each of the quiz's three tasks: 3, 1 and 1 of them are right."""


def write_quiz(folder: Path) -> str:
    """Write the environments; gives the name of the file."""
    (folder / "quiz.py").write_text(QUIZ)
    return "quiz.py"


def write_answers(folder: Path, name: str, answers: Mapping[str, Sequence[str]]) -> str:
    """A script with one answer a sample for every task; gives its target."""
    lines = [
        json.dumps({"task": task, "sample": sample, "answer": answer})
        for task, given in answers.items()
        for sample, answer in enumerate(given)
    ]
    (folder / name).write_text("\n".join(lines) + "\n")
    return f"scripted:{name}"
