"""Scoring one given answer without a model, through exactly the path that a rollout takes."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable
from itertools import islice

from rollbook.collect.judging import check_judge, resolve_judge, sitting, with_judge
from rollbook.collect.loop import here_or_there
from rollbook.collect.member import found
from rollbook.collect.run import settings_of
from rollbook.collect.trial import tasks_of, trial
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Settings
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.environments.registry import Loaded
from rollbook.errors import RolloutFailed, UsageError

MOST_IDS = 100_000
"""Ids that are looked through for one that may have been meant."""


def score(
    env: str | Environment,
    task: str | Task,
    text: str | list[str],
    *,
    data: str | None = None,
    template: str | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    judge: str | list[str] = (),  # type: ignore[assignment]
    judge_name: str = "",
    **settings: JSON,
) -> Score | Awaitable[Score]:
    """What an answer to a task (or its id) is worth; RolloutFailed where a rollout would have no score.

    A list of texts is what is said turn by turn, with tools called as in the text format. A plain call works; inside
    a running event loop, await what it returns.
    """
    made = settings_of(Settings(), {**settings, "judge_urls": [judge] if isinstance(judge, str) else list(judge)})

    async def work() -> Score:
        rollout = await play(found(env, data, template), task, text, limits, made, judge_name)
        if rollout.score is None:
            assert rollout.failure
            raise RolloutFailed(rollout.failure.kind, rollout.failure.where, rollout.failure.message)
        return rollout.score

    return here_or_there(work)


async def play(
    loaded: Loaded,
    task: str | Task,
    text: str | list[str],
    limits: Limits,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    judge_name: str = "",
) -> Rollout:
    """The rollout that gives this answer, with its score or its failure."""
    spec, urls = resolve_judge(settings.judge_urls, judge_name)
    check_judge(loaded, spec is not None)
    asked = task if isinstance(task, Task) else task_of(loaded, task)
    async with sitting(spec, with_judge(settings, urls)) as court, trial(loaded, limits, court=court) as stage:
        return await stage.play(asked, text)


def task_of(loaded: Loaded, task_id: str) -> Task:
    """The task of an id; a UsageError with those that may have been meant."""
    ids: list[str] = []
    for task in tasks_of(loaded):
        if task.id == task_id:
            return task
        if len(ids) < MOST_IDS:
            ids.append(task.id)
    close = difflib.get_close_matches(task_id, ids, n=3, cutoff=0.5) or list(islice(ids, 3))
    hint = f"did you mean {', '.join(close)}?" if close else "it has no tasks"
    raise UsageError(f"{loaded.spec.spec} has no task {task_id!r}; {hint}")
