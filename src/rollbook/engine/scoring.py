"""Score given answers without a model, through exactly the path of a rollout: same runner, environments and limits.

`score` scores one answer; `AnswerScorer` keeps an environment open for many (see `rollbook.checks`).
"""

from __future__ import annotations

import asyncio
import difflib
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Unpack

import msgspec

from rollbook.book import KeyHistory
from rollbook.core import (
    JSON,
    EnvironmentSpec,
    Limits,
    Message,
    ModelSpec,
    Rollout,
    Sampling,
    Score,
    Settings,
    Task,
    TaskLine,
    Turn,
    encode,
)
from rollbook.engine.blends import environment_name, load_environment
from rollbook.engine.book_worker import open_environments
from rollbook.engine.planning import iterate_tasks
from rollbook.engine.request import as_list, as_text, check_struct, update_settings
from rollbook.engine.rollout_runner import RolloutRunner
from rollbook.engine.worker import RolloutJob
from rollbook.environments import (
    Environment,
    EnvironmentRuntime,
    LoadedEnvironment,
    RoleClients,
    open_roles,
    resolve_roles_for,
    write_snapshot,
)
from rollbook.errors import LimitReached, RolloutFailed, UsageError
from rollbook.models import Completion, Model, ModelCall
from rollbook.processes import run_blocking


class FixedAnswerModel(Model):
    """A model that returns given texts, one per turn."""

    def __init__(self, task: Task, texts: Sequence[str]) -> None:
        self.spec = ModelSpec("given", "given")
        self.version: str | None = None
        self._shown = _count_answers(task.messages)
        self._texts = texts

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]) -> Completion:
        """Return the next text; after the last one the conversation ends, as if no more turns were allowed."""
        turn = _count_answers(messages) - self._shown
        if turn >= len(self._texts):
            raise LimitReached("max_turns")
        await asyncio.sleep(0)
        return Completion(Message("assistant", self._texts[turn]), Turn())


def _count_answers(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)


class AnswerScorer:
    """One open environment that scores given answers; `folder` has its source."""

    def __init__(
        self, name: str, spec: EnvironmentSpec, folder: Path, environment: EnvironmentRuntime, limits: Limits
    ) -> None:
        self.name, self.spec, self.folder, self.limits = name, spec, folder, limits
        self._environment = environment

    async def run(self, task: Task, answer: str | Sequence[str]) -> Rollout:
        """Return the rollout in which the model gives this answer: scored, or failed as it would in a run."""
        texts = [answer] if isinstance(answer, str) else list(answer)
        environments = {self.name: self._environment}
        runner = RolloutRunner(
            FixedAnswerModel(task, texts), environments, None, Sampling(), self.limits, 0, tool_format="text"
        )
        rollout, _ = await runner.run_attempt(RolloutJob(roundtrip_task(task, self.name), 0, KeyHistory()), 1)
        return rollout

    async def tools(self, task: Task) -> Sequence[JSON]:
        """Return the tools of a rollout of this task; RolloutFailed if it cannot begin."""
        if not self.spec.offers:
            return self.spec.tools
        session = await self._environment.open_session(roundtrip_task(task, self.name), task.id)
        try:
            return session.tools
        finally:
            await self._environment.close_session(session)


@asynccontextmanager
async def open_scorer(
    loaded: LoadedEnvironment, limits: Limits, *, hosts: int = 1, roles: RoleClients | None = None
) -> AsyncIterator[AnswerScorer]:
    """Open a scorer for an environment, with processes of its own, for a context."""
    name = environment_name(loaded)
    if not loaded.cls.needs_model:
        raise UsageError(f"{name} runs its rollouts itself, so it cannot score a given answer; use rollbook run")
    with tempfile.TemporaryDirectory(prefix="rollbook-") as path:
        folder = Path(path)
        spec = write_snapshot(loaded, folder / "source")
        instances = {} if is_importable(loaded) else {name: loaded.instance}
        async with open_environments(
            {name: spec}, limits, run=folder, hosts=hosts, instances=instances, roles=roles
        ) as opened:
            yield AnswerScorer(name, spec, folder, opened[name], limits)


def is_importable(loaded: LoadedEnvironment) -> bool:
    """Return whether another process can import it: a class of a notebook exists only in this one."""
    installed = bool(getattr(sys.modules[loaded.cls.__module__], "__file__", None))
    return "<locals>" not in loaded.cls.__qualname__ and (loaded.path is not None or installed)


def iterate_valid_tasks(loaded: LoadedEnvironment) -> Iterator[Task]:
    """Yield the environment's own tasks; anything that is not a task is its mistake, reported in one line."""
    for task in iterate_tasks(loaded):
        if not isinstance(task, Task):
            raise UsageError(f"{environment_name(loaded)}: tasks() gave a {type(task).__name__}, not a Task")
        yield task


def roundtrip_task(task: Task, env: str) -> Task:
    """Return the task as a run would read it back from tasks.jsonl."""
    try:
        line = msgspec.json.decode(encode(task.line()), type=TaskLine)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{env}: task {task.id!r} cannot be stored as JSON: {error}") from None
    stored = Task.from_line(line)
    stored.env = env
    return stored


MAX_IDS_SEARCHED = 100_000
"""How many ids are searched for the one that was probably meant."""


def score(
    env: str | Environment | type[Environment],
    task: str | Task,
    text: str | list[str],
    *,
    data: str | PathLike[str] | None = None,
    template: str | PathLike[str] | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    judge: str | Sequence[str] = (),
    judge_name: str = "",
    **settings: JSON,
) -> Score:
    """Score an answer to a task (or its id); RolloutFailed where a rollout would have no score.

    A list of texts is one text per turn, with tools called as in the text format.
    """
    check_struct("limits", limits, Limits)
    own = update_settings(Settings(), {**settings, "judge_urls": as_list(judge, "judge")})
    rows, prompt = as_text(data, "data"), as_text(template, "template")

    async def work() -> Score:
        rollout = await run_answer(load_environment(env, rows, prompt), task, text, limits, own, judge_name)
        if rollout.score is None:
            assert rollout.failure
            raise RolloutFailed(rollout.failure.kind, rollout.failure.where, rollout.failure.message)
        return rollout.score

    return run_blocking(work)


async def run_answer(
    loaded: LoadedEnvironment,
    task: str | Task,
    text: str | list[str],
    limits: Limits,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    judge_name: str = "",
) -> Rollout:
    """Return the rollout that gives this answer, with its score or its failure."""
    meaning, settings = resolve_roles_for(loaded, settings, judge_name)
    resolved = task if isinstance(task, Task) else find_task(loaded, task)
    async with open_roles(meaning, settings) as roles, open_scorer(loaded, limits, roles=roles) as scorer:
        return await scorer.run(resolved, text)


def find_task(loaded: LoadedEnvironment, task_id: str) -> Task:
    """Return the task with an id; a UsageError suggests similar ids."""
    ids: list[str] = []
    for task in iterate_valid_tasks(loaded):
        if task.id == task_id:
            return task
        if len(ids) < MAX_IDS_SEARCHED:
            ids.append(task.id)
    close = difflib.get_close_matches(task_id, ids, n=3, cutoff=0.5) or list(islice(ids, 3))
    hint = f"did you mean {', '.join(close)}?" if close else "it has no tasks"
    raise UsageError(f"{loaded.spec.spec} has no task {task_id!r}; {hint}")
