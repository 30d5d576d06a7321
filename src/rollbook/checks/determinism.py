"""Determinism: the same answers get the same verdicts, and an environment made again has the same tasks.

Answers are verified again here and in other processes. An async verifier runs in the process that calls it, so it is
called from another one: `python -m rollbook.checks.determinism replay REQUEST`. With `remake`, that process makes the
environment again and digests its tasks, so that tasks which depend on the process are found. Either writes its result
next to the request.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec

from rollbook.checks.findings import Finding, make_finding
from rollbook.checks.verifier_checks import CONCURRENCY, AnswerText, OpenScorer, score_all
from rollbook.core import EnvironmentSpec, Limits, Rollout, Task, TaskLine, encode
from rollbook.engine import AnswerScorer, open_environments, roundtrip_task
from rollbook.environments import load_environment
from rollbook.errors import RollbookError
from rollbook.processes import Child, die_with_parent, module_argv

DETERMINISM_CHECK = "verdicts are deterministic"
REPRODUCIBILITY_CHECK = "it can be recreated in another process"
REPLAY_TIMEOUT_S = 600.0
REMAKE_TIMEOUT_S = 120.0


class ReplayRequest(msgspec.Struct, frozen=True):
    """The answers to score again, and the environment to score them in."""

    name: str
    spec: EnvironmentSpec
    limits: Limits
    run: str
    answers: list[tuple[TaskLine, AnswerText]]


class RemakeRequest(msgspec.Struct, frozen=True):
    """The environment to make, and how many of its tasks to compare."""

    spec: EnvironmentSpec
    run: str
    tasks: int


class ProcessResult(msgspec.Struct, frozen=True):
    """A summary of every verdict or the digest of every task, or the reason why there are none."""

    values: list[str] = []
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
    replays = {"repeated": await summarize_verdicts(scorer, answers)}
    if scorer.spec.verify == "sync":
        async with open_scorer(hosts=CONCURRENCY) as fresh:
            replays["in another process"] = await summarize_verdicts(fresh, answers)
    elif not alone:
        replays["in another process"] = await replay_in_process(scorer, answers)
    for how, again in replays.items():
        if again.error:
            return Finding(DETERMINISM_CHECK, "unsound", count, f"{how}: {again.error}")
        for one, two, (task, _) in zip(first, again.values, answers, strict=True):
            if one != two:
                return Finding(
                    DETERMINISM_CHECK, "unsound", count, f"{how}, an answer gets {two} instead of {one}", task.id
                )
    where = "repeated and in fresh processes" if len(replays) > 1 else "repeated in this process"
    return Finding(DETERMINISM_CHECK, "ok", count, f"{len(answers)} answers, {where}")


async def summarize_verdicts(scorer: AnswerScorer, answers: list[tuple[Task, AnswerText]]) -> ProcessResult:
    """Score answers, and return their verdicts."""
    return ProcessResult([summarize_verdict(rollout) for _, rollout in await score_all(scorer, answers, CONCURRENCY)])


def summarize_verdict(rollout: Rollout) -> str:
    """Return a verdict in the form that is compared and shown."""
    if rollout.score is None:
        return rollout.failure.kind if rollout.failure else "nothing"
    parts = "".join(f", {name} {value:g}" for name, value in sorted(rollout.score.parts.items()))
    return f"{rollout.score.reward:g}{parts} for {rollout.score.answer!r}"


async def replay_in_process(scorer: AnswerScorer, answers: Sequence[tuple[Task, AnswerText]]) -> ProcessResult:
    """Score the answers in another process, within a deadline."""
    lines = [(roundtrip_task(task, scorer.name).line(), text) for task, text in answers]
    request = ReplayRequest(scorer.name, scorer.spec, scorer.limits, str(scorer.folder), lines)
    late = f"no verdicts within {REPLAY_TIMEOUT_S:g} s"
    return await run_in_process("replay", scorer.folder, request, REPLAY_TIMEOUT_S, late, "the process")


async def run_in_process(
    verb: str, folder: Path, request: ReplayRequest | RemakeRequest, timeout_s: float, late: str, process: str
) -> ProcessResult:
    """Handle a request in another process; `late` is the error after the deadline, `process` what messages call it."""
    path = folder / f"{verb}.json"
    path.write_bytes(encode(request))
    child = Child(module_argv("rollbook.checks.determinism", verb, str(path)))
    try:
        code = await child.wait(timeout_s)
    except TimeoutError:
        return ProcessResult(error=late)
    finally:
        await asyncio.shield(child.kill_tree())
    result = path.with_suffix(".result")
    if not result.exists():
        tail = child.last_log_line()
        return ProcessResult(error=f"{process} ended with {code}{': ' + tail if tail else ''}")
    return msgspec.json.decode(result.read_bytes(), type=ProcessResult)


async def replay(request: ReplayRequest) -> ProcessResult:
    """Score the answers of a request: runs in the other process."""
    folder, answers = Path(request.run), [(Task.from_line(line), text) for line, text in request.answers]
    try:
        async with open_environments(
            {request.name: request.spec}, request.limits, run=folder, hosts=CONCURRENCY
        ) as opened:
            scorer = AnswerScorer(request.name, request.spec, folder, opened[request.name], request.limits)
            return await summarize_verdicts(scorer, answers)
    except RollbookError as error:
        return ProcessResult(error=str(error))


def task_digest(task: Task) -> str:
    """Return a short digest of a task."""
    line = task.line()
    return hashlib.sha256(encode([line.id, line.messages, line.answer, line.fields])).hexdigest()[:16]


async def check_reproducibility(scorer: AnswerScorer, tasks: list[Task]) -> Finding:
    """Make the environment from its spec in a fresh process, and compare its tasks with ours."""
    request = RemakeRequest(scorer.spec, str(scorer.folder), len(tasks))
    late = f"it was not created within {REMAKE_TIMEOUT_S:g} s"
    made = await run_in_process("remake", scorer.folder, request, REMAKE_TIMEOUT_S, late, "its process")
    if made.error:
        return Finding(REPRODUCIBILITY_CHECK, "unsound", len(tasks), made.error)
    pairs = zip(tasks, [*made.values, *[""] * len(tasks)], strict=False)
    other = [task.id for task, theirs in pairs if task_digest(task) != theirs]
    words = (
        f"{len(other)} tasks are not the same in another process: tasks() must not depend on randomness or on set order"
    )
    return make_finding(
        REPRODUCIBILITY_CHECK,
        len(tasks),
        other,
        "unsound",
        "from its spec and arguments alone, with the same tasks",
        words,
    )


def remake(request: RemakeRequest) -> ProcessResult:
    """Make the environment of a request: runs in the other process."""
    try:
        environment = load_environment(request.spec, Path(request.run))
        return ProcessResult([task_digest(task) for task in islice(environment.tasks(), request.tasks)])
    except RollbookError as error:
        return ProcessResult(error=str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is the finding
        return ProcessResult(error=f"{type(error).__name__}: {error}")


def main(verb: str, path: Path) -> None:
    """Handle the request in a file, in the other process."""
    die_with_parent()
    if verb == "replay":
        result = asyncio.run(replay(msgspec.json.decode(path.read_bytes(), type=ReplayRequest)))
    else:
        result = remake(msgspec.json.decode(path.read_bytes(), type=RemakeRequest))
    path.with_suffix(".result").write_bytes(encode(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
