"""Short explanations: an exact match counts, and a judge decides about everything else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollbook import Environment, Rollout, Score, Task

if TYPE_CHECKING:
    from rollbook.environments import Judge

ANSWERS = {
    "sky": ("Why is the sky blue? One sentence.", "Air scatters blue light more than red light."),
    "tides": ("What causes the tides? One word.", "Gravity"),
}


class Explain(Environment):
    """Questions whose answers can be worded in many ways."""

    def tasks(self) -> Iterator[Task]:
        """Yield the questions."""
        for name, (question, answer) in ANSWERS.items():
            yield Task(id=name, prompt=question, answer=answer)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 for the exact answer."""
        exact = float(rollout.text.strip() == task.answer)
        return Score(exact, parts={"rule": exact})

    async def appeal(self, task: Task, rollout: Rollout, score: Score, judge: Judge) -> Score:
        """Ask the judge about an answer that the rule rejects."""
        if score.reward:
            return score
        ruling = await judge.same(task.prompt, str(task.answer), rollout.text)
        return Score(float(ruling.same), {**score.parts, "judge": ruling.share})
