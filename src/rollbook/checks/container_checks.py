"""Check tasks in containers without a model: the solution must get its reward, doing nothing must get none."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.agents import Agent, Nop, Oracle
from rollbook.book import KeyHistory
from rollbook.checks.findings import Finding, make_finding, not_checked
from rollbook.containers import find_runtime, list_own_objects
from rollbook.core import FAILURE_KINDS, Limits, Rollout, Sampling, Task
from rollbook.engine import RolloutJob, RolloutRunner, open_environments
from rollbook.environments import EnvironmentRuntime, LoadedEnvironment, write_snapshot
from rollbook.models import AbsentModel


class _Tests(msgspec.Struct, frozen=True):
    restored: list[str] = []


class _Step(msgspec.Struct, frozen=True):
    tests: _Tests = _Tests()


class _Outcome(msgspec.Struct):
    """What is read of the outcome of a rollout in a container."""

    steps: list[_Step] = []


AT_ONCE = 2
NAME = "checked"


async def check_container_tasks(loaded: LoadedEnvironment, tasks: Sequence[Task], limits: Limits) -> list[Finding]:
    """Run every task with both agents, and return what was found."""
    named = [Task.from_line(msgspec.structs.replace(task.line(), env=NAME)) for task in tasks]
    instances = {NAME: loaded.instance}
    with tempfile.TemporaryDirectory(prefix="rollbook-") as folder:
        run = Path(folder)
        specs = {NAME: write_snapshot(loaded, run / "source")}  # environment processes load their class from it
        async with open_environments(specs, limits, run=run, hosts=1, instances=instances) as environments:
            oracle = await _play_all(Oracle(), environments, named, limits)
            nop = await _play_all(Nop(), environments, named, limits)
    left = await list_own_objects(find_runtime())
    both = [*oracle, *nop]
    return [
        _check_failures(both, "images are built and containers start", verification=False),
        _check_failures(both, "tests give a reward", verification=True),
        _check_oracle(oracle),
        _check_nop(nop),
        _check_time(both),
        make_finding(
            "nothing is left", len(tasks), [each.id for each in left], "unsound", "no container", "containers"
        ),
    ]


async def _play_all(
    agent: Agent, environments: Mapping[str, EnvironmentRuntime], tasks: Sequence[Task], limits: Limits
) -> list[Rollout]:
    runner = RolloutRunner(AbsentModel(), environments, agent, Sampling(), limits, 0)
    slots = asyncio.Semaphore(AT_ONCE)

    async def play(task: Task) -> Rollout:
        async with slots:
            return (await runner.run_attempt(RolloutJob(task, 0, KeyHistory()), 1))[0]

    return list(await asyncio.gather(*map(play, tasks)))


def _check_failures(rollouts: Sequence[Rollout], check: str, *, verification: bool) -> Finding:
    """Check that nothing failed, in the tests or before them."""
    failed = [r for r in rollouts if r.failure and FAILURE_KINDS[r.failure.kind].in_verification == verification]
    words = f"{failed[0].failure.kind}: {failed[0].failure.message[:200]}" if failed and failed[0].failure else ""
    return make_finding(check, len(rollouts) // 2, [r.task.id for r in failed], "unsound", "always", words)


def _check_oracle(rollouts: Sequence[Rollout]) -> Finding:
    unrewarded = [r for r in rollouts if r.score and r.score.reward <= 0]
    missed, restored = [r.task.id for r in unrewarded], [*map(_list_restored, unrewarded)]
    words = f"{len(missed)} solutions get no reward"
    if late := [r.task.id for r in unrewarded if r.ended == "agent_timeout"]:
        words += f"; {len(late)} reached the deadline of the agent"
    if hidden := next(filter(None, restored), []):
        words += f"; the tests do not see their changes of {', '.join(hidden[:3])}: list them in [metadata] keep"
    return _judge_scores("the solution gets its reward", rollouts, missed, "every one", words)


def _list_restored(rollout: Rollout) -> list[str]:
    """Return which files that the solution changed are the image's again for the tests."""
    outcome = msgspec.convert(rollout.outcome or {}, _Outcome)
    return [path for step in outcome.steps for path in step.tests.restored]


def _check_nop(rollouts: Sequence[Rollout]) -> Finding:
    given = [r.task.id for r in rollouts if r.score and r.score.reward > 0]
    words = f"{len(given)} tasks reward an agent that does nothing"
    return _judge_scores("doing nothing gets no reward", rollouts, given, "never", words)


def _judge_scores(check: str, rollouts: Sequence[Rollout], bad: list[str], good: str, words: str) -> Finding:
    """Return a finding about scores; a task without one has not passed, and why it has none is another finding."""
    unscored = [r.task.id for r in rollouts if not r.score]
    scored = len(rollouts) - len(unscored)
    if unscored and not bad:
        why = f"{len(unscored)} of {len(rollouts)} tasks have no score"
        return Finding(check, "not checked", scored, why, unscored[0])
    return make_finding(check, scored, bad, "unsound", good, words)


def _check_time(rollouts: Sequence[Rollout]) -> Finding:
    """Report how long a rollout without a model takes: the container, the solution and the tests."""
    timed = [r for r in rollouts if r.score]
    if not timed:
        return not_checked("time of a rollout", "nothing was scored")
    slowest = max(timed, key=lambda r: r.timing.seconds)
    mean = sum(r.timing.seconds for r in timed) / len(timed)
    words = f"mean {mean:.1f} s, slowest {slowest.timing.seconds:.1f} s"
    return Finding("time of a rollout", "ok", len(rollouts) // 2, words, slowest.task.id)
