"""Steadiness: the same answers verified again, here and in other processes, must get the same verdicts.

A verifier that is async runs in the process that asks, so for it there is one that asks elsewhere:
`python -m rollbook.collect.steadiness REQUEST`, which writes the verdicts beside the request.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from rollbook.collect.finding import Finding
from rollbook.collect.probe import Said, play_all
from rollbook.collect.trial import Trial, as_kept
from rollbook.collect.work import stages
from rollbook.core.json import encode
from rollbook.core.manifest import EnvironmentSpec, Limits
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task, TaskLine
from rollbook.errors import RollbookError
from rollbook.processes.child import Child, module_argv
from rollbook.processes.life import die_with_parent

Trials = Callable[..., AbstractAsyncContextManager[Trial]]
"""Makes trials of one environment, each with processes of its own."""

CHECK = "verdicts are deterministic"
AT_ONCE = 2
WITHIN_S = 600.0


class Replay(msgspec.Struct, frozen=True):
    """What to say again, and in which environment."""

    name: str
    spec: EnvironmentSpec
    limits: Limits
    run: str
    answers: list[tuple[TaskLine, Said]]


class Heard(msgspec.Struct, frozen=True):
    """The gist of every verdict, or why there are none."""

    gists: list[str] = []
    error: str = ""


async def steadiness(
    stage: Trial, trials: Trials, answers: list[tuple[Task, Said]], before: list[Rollout], *, alone: bool
) -> Finding:
    """The same answers again, here and in fresh processes; `alone`: no other process could verify as this one does."""
    count, first = len({task.id for task, _ in answers}), [gist(rollout) for rollout in before]
    heard = {"repeated": Heard([gist(rollout) for _, rollout in await play_all(stage, answers, AT_ONCE)])}
    if stage.spec.verify == "sync":
        async with trials(hosts=AT_ONCE) as fresh:
            said = await play_all(fresh, answers, AT_ONCE)
        heard["in another process"] = Heard([gist(rollout) for _, rollout in said])
    elif not alone:
        heard["in another process"] = await replayed(stage, answers)
    for how, again in heard.items():
        if again.error:
            return Finding(CHECK, "unsound", count, f"{how}: {again.error}")
        for one, two, (task, _) in zip(first, again.gists, answers, strict=True):
            if one != two:
                return Finding(CHECK, "unsound", count, f"{how}, an answer gets {two} instead of {one}", task.id)
    where = "repeated and in fresh processes" if len(heard) > 1 else "repeated in this process"
    return Finding(CHECK, "ok", count, f"{len(answers)} answers, {where}")


def gist(rollout: Rollout) -> str:
    """A verdict in the form that is compared and shown."""
    if rollout.score is None:
        return rollout.failure.kind if rollout.failure else "nothing"
    parts = "".join(f", {name} {value:g}" for name, value in sorted(rollout.score.parts.items()))
    return f"{rollout.score.reward:g}{parts} for {rollout.score.answer!r}"


async def replayed(trial: Trial, answers: Sequence[tuple[Task, Said]]) -> Heard:
    """What another process makes of the answers, within a deadline."""
    request = trial.folder / "replay.json"
    kept = [(as_kept(task, trial.name).line(), said) for task, said in answers]
    request.write_bytes(encode(Replay(trial.name, trial.spec, trial.limits, str(trial.folder), kept)))
    child = Child(module_argv("rollbook.collect.steadiness", str(request)))
    try:
        code = await child.exited(WITHIN_S)
    except TimeoutError:
        return Heard(error=f"no verdicts within {WITHIN_S:g} s")
    finally:
        await asyncio.shield(child.kill_tree())
    answer = request.with_suffix(".heard")
    if not answer.exists():
        tail = child.last_words()
        return Heard(error=f"the process ended with {code}{': ' + tail if tail else ''}")
    return msgspec.json.decode(answer.read_bytes(), type=Heard)


async def replay(request: Replay) -> Heard:
    """Over there."""
    folder, answers = Path(request.run), [(Task.from_line(line), said) for line, said in request.answers]
    try:
        async with stages({request.name: request.spec}, request.limits, run=folder, hosts=AT_ONCE) as on:
            trial = Trial(request.name, request.spec, folder, on[request.name], request.limits)
            return Heard([gist(rollout) for _, rollout in await play_all(trial, answers, AT_ONCE)])
    except RollbookError as error:
        return Heard(error=str(error))


if __name__ == "__main__":
    die_with_parent()
    path = Path(sys.argv[1])
    said = asyncio.run(replay(msgspec.json.decode(path.read_bytes(), type=Replay)))
    path.with_suffix(".heard").write_bytes(encode(said))
