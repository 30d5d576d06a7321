"""Twins: two rollouts side by side in one environment process must come to what each comes to alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rollbook.collect.finding import Finding, not_checked
from rollbook.collect.probe import Said
from rollbook.collect.steadiness import Trials
from rollbook.collect.trial import Trial
from rollbook.core.json import JSON, encode
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.errors import RolloutFailed

CHECK = "state is each rollout's own"
PAIRS = 8

_SAMPLES: dict[str, tuple[JSON, JSON]] = {
    "string": ("x", "y"),
    "integer": (1, 2),
    "number": (1.0, 2.0),
    "boolean": (True, False),
    "null": (None, None),
}
"""What each of two twins says: were it the same, a state that they share would look like one of their own."""


async def isolation(trials: Trials, tasks: Sequence[Task], solved: dict[str, Said]) -> Finding:
    """Twins share one process: that is where state would be shared by mistake."""
    async with trials(hosts=1) as trial:
        return await side_by_side(trial, trials, tasks, solved)


async def side_by_side(trial: Trial, trials: Trials, tasks: Sequence[Task], solved: dict[str, Said]) -> Finding:
    """Play pairs of rollouts alone, then interleaved, and compare all that each saw and left."""
    if trial.spec.state == "none":
        return not_checked(CHECK, "it has no state")
    chosen = tasks[:PAIRS]
    moves = {task.id: await moves_in(trial, task, solved.get(task.id), 0) for task in chosen}
    others = {task.id: await moves_in(trial, task, solved.get(task.id), 1) for task in chosen}
    for task in chosen:
        alone = await trial.play(task, moves[task.id])
        again = await trial.play(task, moves[task.id])
        if left_by(alone) != left_by(again):
            return await unsteady(trials, task, moves[task.id], len(chosen))
        for other in (task, chosen[0], chosen[-1]):
            one, two = await asyncio.gather(trial.play(task, moves[task.id]), trial.play(other, others[other.id]))
            if left_by(one) != left_by(alone):
                words = f"beside {other.id} it comes to something else: {differing(alone, one)}"
                return Finding(CHECK, "unsound", len(chosen), words, task.id)
            if two.failure and two.failure.kind == "environment_error":
                return Finding(CHECK, "unsound", len(chosen), two.failure.message[:200], other.id)
    return Finding(CHECK, "ok", len(chosen), "interleaved as alone")


async def unsteady(trials: Trials, task: Task, moves: Said, count: int) -> Finding:
    """Why a rollout alone does not come to the same twice: chance, or what an earlier one left in the process."""
    firsts = []
    for _ in range(2):
        async with trials(hosts=1) as fresh:
            firsts.append(await fresh.play(task, moves))
            second = await fresh.play(task, moves)
    one, other = map(left_by, firsts)
    if one == other and left_by(second) != other:
        words = f"the rollout before it shows in a second one: {differing(firsts[1], second)}"
        return Finding(CHECK, "unsound", count, words, task.id)
    return Finding(CHECK, "warning", count, "one rollout alone does not come to the same twice", task.id)


def left_by(rollout: Rollout) -> JSON:
    """What a rollout saw and left: what the tools and the environment said, and the outcome."""
    return [[message.text for message in rollout.messages], rollout.outcome]


def differing(alone: Rollout, beside: Rollout) -> str:
    """The first difference, in few words."""
    pairs = zip(("messages", "outcome"), left_by(alone), left_by(beside), strict=True)
    return next((f"{name} {_short(b)}, not {_short(a)}" for name, a, b in pairs if a != b), "nothing")


def _short(value: JSON) -> str:
    text = encode(value).decode()
    return text if len(text) <= 80 else f"...{text[-80:]}"


async def moves_in(trial: Trial, task: Task, solution: Said | None, twin: int) -> Said:
    """What a twin says in a task, with the tools that it has there."""
    try:
        return moves_of(solution, await trial.tools(task), twin)
    except RolloutFailed:  # then every rollout of it fails as it begins, whatever it would have said
        return moves_of(solution, (), twin)


def moves_of(solution: Said | None, tools: Sequence[JSON], twin: int) -> Said:
    """What a twin says: a solution turn by turn, else calls that are made up and then the answer, if one is known."""
    return solution if isinstance(solution, list) else [*made_up(tools, twin), solution or _SAMPLES["string"][twin]]


def made_up(tools: Sequence[JSON], twin: int) -> list[str]:
    """A call of every tool, one a turn, with arguments that fit its schema."""
    calls = [
        {"name": tool["function"]["name"], "arguments": instance(tool["function"]["parameters"], twin)}
        for tool in tools
    ]
    return [encode({"calls": [call]}).decode() for call in calls]


def instance(schema: JSON, twin: int) -> JSON:
    """A small value that fits a schema, as far as its types go; another one for each twin, where there are two."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][twin % len(schema["enum"])] if schema["enum"] else None
    if "anyOf" in schema:
        return instance(schema["anyOf"][0], twin)
    if schema.get("type") == "object":
        wanted = schema.get("required", [])
        return {name: instance(part, twin) for name, part in schema.get("properties", {}).items() if name in wanted}
    if schema.get("type") == "array":
        return [instance(schema.get("items") or {}, twin)] * int(schema.get("minItems", 0))
    return _SAMPLES.get(schema.get("type", "string"), _SAMPLES["string"])[twin]
