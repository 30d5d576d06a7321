"""Determinism: the same answers verified again, here and in other processes, must get the same verdicts.

An async verifier runs in the process that calls it, so it is called from another one:
`python -m rollbook.checks.determinism REQUEST`, which writes the verdicts next to the request.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollbook.checks.findings import Finding
from rollbook.checks.verifier_checks import CONCURRENCY, AnswerText, OpenScorer, score_all
from rollbook.core import EnvironmentSpec, Limits, Rollout, Task, TaskLine, encode
from rollbook.engine import AnswerScorer, open_environments, roundtrip_task
from rollbook.errors import RollbookError
from rollbook.processes import Child, die_with_parent, module_argv

DETERMINISM_CHECK = "verdicts are deterministic"

TIMEOUT_S = 600.0


class ReplayRequest(msgspec.Struct, frozen=True):
    """The answers to score again, and the environment to score them in."""

    name: str
    spec: EnvironmentSpec
    limits: Limits
    run: str
    answers: list[tuple[TaskLine, AnswerText]]


class ReplayResult(msgspec.Struct, frozen=True):
    """A summary of every verdict, or the reason why there are none."""

    summaries: list[str] = []
    error: str = ""


async def check_determinism(
    scorer: AnswerScorer,
    open_scorer: OpenScorer,
    answers: list[tuple[Task, AnswerText]],
    before: list[Rollout],
    *,
    alone: bool,
) -> Finding:
    """Score the same answers again, here and in fresh processes; `alone`: no other process can verify as this one."""
    count, first = len({task.id for task, _ in answers}), [summarize_verdict(rollout) for rollout in before]
    replays = {
        "repeated": ReplayResult(
            [summarize_verdict(rollout) for _, rollout in await score_all(scorer, answers, CONCURRENCY)]
        )
    }
    if scorer.spec.verify == "sync":
        async with open_scorer(hosts=CONCURRENCY) as fresh:
            scored = await score_all(fresh, answers, CONCURRENCY)
        replays["in another process"] = ReplayResult([summarize_verdict(rollout) for _, rollout in scored])
    elif not alone:
        replays["in another process"] = await replay_in_process(scorer, answers)
    for how, again in replays.items():
        if again.error:
            return Finding(DETERMINISM_CHECK, "unsound", count, f"{how}: {again.error}")
        for one, two, (task, _) in zip(first, again.summaries, answers, strict=True):
            if one != two:
                return Finding(
                    DETERMINISM_CHECK, "unsound", count, f"{how}, an answer gets {two} instead of {one}", task.id
                )
    where = "repeated and in fresh processes" if len(replays) > 1 else "repeated in this process"
    return Finding(DETERMINISM_CHECK, "ok", count, f"{len(answers)} answers, {where}")


def summarize_verdict(rollout: Rollout) -> str:
    """Return a verdict in the form that is compared and shown."""
    if rollout.score is None:
        return rollout.failure.kind if rollout.failure else "nothing"
    parts = "".join(f", {name} {value:g}" for name, value in sorted(rollout.score.parts.items()))
    return f"{rollout.score.reward:g}{parts} for {rollout.score.answer!r}"


async def replay_in_process(scorer: AnswerScorer, answers: Sequence[tuple[Task, AnswerText]]) -> ReplayResult:
    """Score the answers in another process, within a deadline."""
    request = scorer.folder / "replay.json"
    lines = [(roundtrip_task(task, scorer.name).line(), text) for task, text in answers]
    request.write_bytes(encode(ReplayRequest(scorer.name, scorer.spec, scorer.limits, str(scorer.folder), lines)))
    child = Child(module_argv("rollbook.checks.determinism", str(request)))
    try:
        code = await child.wait(TIMEOUT_S)
    except TimeoutError:
        return ReplayResult(error=f"no verdicts within {TIMEOUT_S:g} s")
    finally:
        await asyncio.shield(child.kill_tree())
    result = request.with_suffix(".verdicts")
    if not result.exists():
        tail = child.last_log_line()
        return ReplayResult(error=f"the process ended with {code}{': ' + tail if tail else ''}")
    return msgspec.json.decode(result.read_bytes(), type=ReplayResult)


async def replay(request: ReplayRequest) -> ReplayResult:
    """Score the answers of a request: runs in the other process."""
    folder, answers = Path(request.run), [(Task.from_line(line), text) for line, text in request.answers]
    try:
        async with open_environments(
            {request.name: request.spec}, request.limits, run=folder, hosts=CONCURRENCY
        ) as opened:
            scorer = AnswerScorer(request.name, request.spec, folder, opened[request.name], request.limits)
            return ReplayResult(
                [summarize_verdict(rollout) for _, rollout in await score_all(scorer, answers, CONCURRENCY)]
            )
    except RollbookError as error:
        return ReplayResult(error=str(error))


if __name__ == "__main__":
    die_with_parent()
    path = Path(sys.argv[1])
    verdicts = asyncio.run(replay(msgspec.json.decode(path.read_bytes(), type=ReplayRequest)))
    path.with_suffix(".verdicts").write_bytes(encode(verdicts))
