"""Isolation: two concurrent rollouts in one environment process must give the result that each gives alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rollbook.checks.findings import Finding, not_checked
from rollbook.checks.verifier_checks import AnswerText, OpenScorer
from rollbook.core import JSON, Rollout, Task, encode
from rollbook.engine import AnswerScorer
from rollbook.errors import RolloutFailed

ISOLATION_CHECK = "rollouts do not share state"
MAX_TASKS = 8

_SAMPLE_VALUES: dict[str, tuple[JSON, JSON]] = {
    "string": ("x", "y"),
    "integer": (1, 2),
    "number": (1.0, 2.0),
    "boolean": (True, False),
    "null": (None, None),
}
"""A value for each of two rollouts: with the same one, shared state would look like their own."""


async def check_isolation(open_scorer: OpenScorer, tasks: Sequence[Task], solutions: dict[str, AnswerText]) -> Finding:
    """Check with one environment process: that is where state would be shared by mistake."""
    async with open_scorer(hosts=1) as scorer:
        return await run_side_by_side(scorer, open_scorer, tasks, solutions)


async def run_side_by_side(
    scorer: AnswerScorer, open_scorer: OpenScorer, tasks: Sequence[Task], solutions: dict[str, AnswerText]
) -> Finding:
    """Run rollouts alone, then interleaved in pairs, and compare their messages and outcomes."""
    if scorer.spec.state == "none":
        return not_checked(ISOLATION_CHECK, "it has no state")
    chosen = tasks[:MAX_TASKS]
    moves = {task.id: await make_task_answers(scorer, task, solutions.get(task.id), 0) for task in chosen}
    others = {task.id: await make_task_answers(scorer, task, solutions.get(task.id), 1) for task in chosen}
    for task in chosen:
        alone = await scorer.run(task, moves[task.id])
        again = await scorer.run(task, moves[task.id])
        if visible_result(alone) != visible_result(again):
            return await explain_instability(open_scorer, task, moves[task.id], len(chosen))
        for other in (task, chosen[0], chosen[-1]):
            one, two = await asyncio.gather(scorer.run(task, moves[task.id]), scorer.run(other, others[other.id]))
            if visible_result(one) != visible_result(alone):
                words = f"next to {other.id} its result differs: {describe_difference(alone, one)}"
                return Finding(ISOLATION_CHECK, "unsound", len(chosen), words, task.id)
            if two.failure and two.failure.kind == "environment_error":
                return Finding(ISOLATION_CHECK, "unsound", len(chosen), two.failure.message[:200], other.id)
    return Finding(ISOLATION_CHECK, "ok", len(chosen), "the same result interleaved as alone")


async def explain_instability(open_scorer: OpenScorer, task: Task, answers: AnswerText, count: int) -> Finding:
    """Find out why a rollout alone gives two results: chance, or what an earlier one left in the process."""
    firsts = []
    for _ in range(2):
        async with open_scorer(hosts=1) as fresh:
            firsts.append(await fresh.run(task, answers))
            second = await fresh.run(task, answers)
    one, other = map(visible_result, firsts)
    if one == other and visible_result(second) != other:
        words = f"a second rollout sees state of the first: {describe_difference(firsts[1], second)}"
        return Finding(ISOLATION_CHECK, "unsound", count, words, task.id)
    return Finding(
        ISOLATION_CHECK, "warning", count, "the same rollout run twice alone gives different results", task.id
    )


def visible_result(rollout: Rollout) -> JSON:
    """Return what a rollout received from tools and environment, and its outcome."""
    return [[message.text for message in rollout.messages], rollout.outcome]


def describe_difference(alone: Rollout, concurrent: Rollout) -> str:
    """Return the first difference, in few words."""
    pairs = zip(("messages", "outcome"), visible_result(alone), visible_result(concurrent), strict=True)
    return next((f"{name} {_short(b)}, not {_short(a)}" for name, a, b in pairs if a != b), "nothing")


def _short(value: JSON) -> str:
    text = encode(value).decode()
    return text if len(text) <= 80 else f"...{text[-80:]}"


async def make_task_answers(scorer: AnswerScorer, task: Task, solution: AnswerText | None, variant: int) -> AnswerText:
    """Return the model's texts for one variant of a task, with the tools that the task has."""
    try:
        return make_answers(solution, await scorer.tools(task), variant)
    except RolloutFailed:  # then every rollout of it fails at its start, whatever the texts are
        return make_answers(solution, (), variant)


def make_answers(solution: AnswerText | None, tools: Sequence[JSON], variant: int) -> AnswerText:
    """Return the texts of one variant: a solution turn by turn, else example calls and then the answer, if known."""
    if isinstance(solution, list):
        return solution
    return [*make_tool_calls(tools, variant), solution or _SAMPLE_VALUES["string"][variant]]


def make_tool_calls(tools: Sequence[JSON], variant: int) -> list[str]:
    """Return one call of every tool, one per turn, with arguments that fit its schema."""
    calls = [
        {"name": tool["function"]["name"], "arguments": example_value(tool["function"]["parameters"], variant)}
        for tool in tools
    ]
    return [encode({"calls": [call]}).decode() for call in calls]


def example_value(schema: JSON, variant: int) -> JSON:
    """Return a small value that fits the types of a schema; another one for each variant, where there are two."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][variant % len(schema["enum"])] if schema["enum"] else None
    if "anyOf" in schema:
        return example_value(schema["anyOf"][0], variant)
    if schema.get("type") == "object":
        required = schema.get("required", [])
        return {
            name: example_value(part, variant)
            for name, part in schema.get("properties", {}).items()
            if name in required
        }
    if schema.get("type") == "array":
        return [example_value(schema.get("items") or {}, variant)] * int(schema.get("minItems", 0))
    return _SAMPLE_VALUES.get(schema.get("type", "string"), _SAMPLE_VALUES["string"])[variant]
