"""Probes: answers whose value is known in advance, and the verdicts on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from rollbook.checks.findings import CheckVerdict, Finding, not_checked
from rollbook.core import JSON, Rollout, Task
from rollbook.engine import AnswerScorer
from rollbook.environments import Environment, Solution

NEGLIGIBLE_REWARD = 0.1
"""The reward that a wrong answer may get without a warning: some scorers reward a well-formed attempt."""

HALF_REWARD = 0.5
"""A reward that an answer without content must not get on most tasks, whatever a scorer gives for an attempt."""

CHANCE_SHARE = 0.05
"""The share of tasks (or one task) on which such an answer may be right by chance: a question can end in its answer."""

REFUSAL = "I do not know."
RAMBLING_ANSWER = (
    "Well, there is much to be said about this, and it all hangs together somehow, so let us go on for a while. " * 40
)
"""Text that answers nothing, as long as a long answer."""
PROMPT_REPEATS = 3
ONLY_FORM = "only the form of answers counts here"
NO_OTHER_ANSWER = "no two tasks have different answers"

AnswerText = str | list[str]
ScoredAnswers = list[tuple[Task, Rollout]]


class Probe(msgspec.Struct, frozen=True):
    """A kind of answer: its name, and its text for each task; tasks that it cannot answer are left out."""

    name: str
    answers: list[tuple[Task, AnswerText]]
    right: bool = False
    absent: str = ""
    lucky: bool = False
    """Whether it may be right by chance on a task or two."""
    worthless: bool = False
    """Whether it has no content at all, so that it deserves no partial credit."""

    @property
    def by_id(self) -> dict[str, AnswerText]:
        """Its texts by task id."""
        return {task.id: text for task, text in self.answers}


def make_probes(environment: Environment, tasks: Sequence[Task], solve: Callable[[Task], Solution]) -> list[Probe]:
    """Return every probe of an environment; `solve` is its `solution`."""
    solved = {task.id: solution for task in tasks if (solution := solve(task)) is not None}
    known = [(task, solved[task.id]) for task in tasks if task.id in solved]
    probes = [
        Probe("known solutions score 1", known, True, _no_solution_reason(environment)),
        Probe("an empty answer is not right", [(task, "") for task in tasks], worthless=True),
        *_make_contentless_probes(tasks, solved),
    ]
    if environment.judges_form:
        return probes[:2] + [msgspec.structs.replace(probe, answers=[], absent=ONLY_FORM) for probe in probes[2:]]
    return probes


def _make_contentless_probes(tasks: Sequence[Task], solved: dict[str, AnswerText]) -> list[Probe]:
    """Return probes that answer something, but not the question."""
    return [
        Probe(f"a refusal ({REFUSAL}) is not right", [(task, REFUSAL) for task in tasks], worthless=True),
        Probe("a long ramble is not right", [(task, RAMBLING_ANSWER) for task in tasks], lucky=True, worthless=True),
        Probe(
            "another task's solution is not right", _swap_solutions(tasks, solved), absent=NO_OTHER_ANSWER, lucky=True
        ),
        Probe("the question echoed is not right", [(task, task.prompt) for task in tasks], lucky=True),
        Probe("the prompt repeated is not right", [(task, _repeat_prompt(task)) for task in tasks], lucky=True),
    ]


def _no_solution_reason(environment: Environment) -> str:
    name = type(environment).__name__
    own = type(environment).solution is not Environment.solution
    return (
        f"{name}.solution returns None for all of these tasks"
        if own
        else f"{name} has no solution(task), so no solution is known"
    )


def _repeat_prompt(task: Task) -> str:
    whole = "\n".join(message.text for message in task.messages)
    return "\n\n".join([whole] * PROMPT_REPEATS)


def _swap_solutions(tasks: Sequence[Task], solutions: dict[str, AnswerText]) -> list[tuple[Task, AnswerText]]:
    """Return for each task the solution (without one, the answer) of the next task that has a different answer."""
    texts = {task.id: str(task.answer) for task in tasks if isinstance(task.answer, str | int | float)} | solutions
    swapped: list[tuple[Task, AnswerText]] = []
    for at, task in enumerate(tasks):
        others = (*tasks[at + 1 :], *tasks[:at])
        other = next((o for o in others if _has_other_answer(task, o, texts)), None)
        if other is not None:
            swapped.append((task, texts[other.id]))
    return swapped


def _has_other_answer(task: Task, other: Task, answers: dict[str, AnswerText]) -> bool:
    if other.id not in answers:
        return False
    if task.answer is not None or other.answer is not None:
        return bool(_fold_answer(task.answer) != _fold_answer(other.answer))
    return answers.get(task.id) != answers[other.id]


def _fold_answer(answer: JSON) -> JSON:
    return answer.strip().casefold() if isinstance(answer, str) else answer


async def score_all(
    scorer: AnswerScorer, answers: Sequence[tuple[Task, AnswerText]], concurrency: int
) -> ScoredAnswers:
    """Score every answer, at most `concurrency` at a time."""
    slots = asyncio.Semaphore(concurrency)

    async def run(task: Task, text: AnswerText) -> tuple[Task, Rollout]:
        async with slots:
            return task, await scorer.run(task, text)

    async with asyncio.TaskGroup() as group:
        scoring = [group.create_task(run(task, text)) for task, text in answers]
    return [task.result() for task in scoring]


def assess_probe(probe: Probe, verdicts: ScoredAnswers) -> Finding:
    """Return the finding that follows from the verdicts on a probe."""
    if not verdicts:
        return not_checked(probe.name, probe.absent or "there is nothing to try")
    failed = [(task, rollout) for task, rollout in verdicts if rollout.failure]
    if failed:
        return _failed_finding(probe, failed, len(verdicts))
    return _right_finding(probe, verdicts) if probe.right else _wrong_finding(probe, verdicts)


def _failed_finding(probe: Probe, failed: ScoredAnswers, count: int) -> Finding:
    task, rollout = failed[0]
    assert rollout.failure
    words = f"{len(failed)} have no score: {rollout.failure.kind}: {rollout.failure.message[:200]}"
    return Finding(probe.name, "unsound", count, words, task.id)


def _right_finding(probe: Probe, verdicts: ScoredAnswers) -> Finding:
    wrong = [(task.id, rollout.reward) for task, rollout in verdicts if rollout.reward != 1]
    if not wrong:
        return Finding(probe.name, "ok", len(verdicts), f"{len(verdicts)} of {len(verdicts)}")
    right = len(verdicts) - len(wrong)
    return Finding(
        probe.name, "unsound", len(verdicts), f"{right} of {len(verdicts)}; one scores {wrong[0][1]:g}", wrong[0][0]
    )


def _wrong_finding(probe: Probe, verdicts: ScoredAnswers) -> Finding:
    full = [task.id for task, rollout in verdicts if rollout.reward >= 1]
    best, example = max((rollout.reward, task.id) for task, rollout in verdicts)
    if full:
        chance = max(1.0, CHANCE_SHARE * len(verdicts)) if probe.lucky else 0.0
        verdict: CheckVerdict = "warning" if len(full) <= chance and len(full) < len(verdicts) else "unsound"
        return Finding(probe.name, verdict, len(verdicts), f"{len(full)} score 1 or more", full[0])
    paid = sum(rollout.reward >= HALF_REWARD for _, rollout in verdicts)
    if probe.worthless and paid > len(verdicts) / 2:
        return Finding(
            probe.name, "unsound", len(verdicts), f"{paid} score {HALF_REWARD:g} or more, up to {best:g}", example
        )
    if best > NEGLIGIBLE_REWARD:
        return Finding(probe.name, "warning", len(verdicts), f"up to {best:g}", example)
    return Finding(probe.name, "ok", len(verdicts), f"at most {best:g}")


OpenScorer = Callable[..., AbstractAsyncContextManager[AnswerScorer]]
"""Opens scorers of one environment, each with processes of its own."""


CONCURRENCY = 2
