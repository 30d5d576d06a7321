"""A harness: a dataset and a verifier, as NeMo Evaluator has them; an environment can be one, and the other way round.

Packages are found by convention: PACKAGE.gym_harness.Harness(eval_type=..., **arguments).
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from rollbook.collect.member import found
from rollbook.collect.planning import given
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Settings
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout, seed_of
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.core.turn import Turn
from rollbook.environments.environment import Environment
from rollbook.environments.source import explain
from rollbook.environments.stage import Stage
from rollbook.errors import InvalidReward, UsageError
from rollbook.wire.gym.params import KEY
from rollbook.wire.gym.row import has_id, row_of, task_of
from rollbook.wire.gym.staging import staged

MODULE, CLASS = "gym_harness", "Harness"


class Harness(ABC):
    """What a package offers: rows to ask, and what an answer to one is worth."""

    def __init__(self, eval_type: str, **kwargs: JSON) -> None:
        self.eval_type = eval_type

    @abstractmethod
    def get_dataset(self) -> list[dict[str, JSON]]:
        """The rows: `responses_create_params` with the input, `expected_answer`, and what else `verify` needs."""

    @abstractmethod
    async def verify(self, response_text: str, expected_answer: str, **kwargs: JSON) -> tuple[float, str | None]:
        """The reward of an answer, and the answer as it was read; `kwargs` are the other fields of the row."""


class HarnessEnvironment(Environment):
    """A harness as an environment: `harness:PACKAGE?eval_type=NAME&key=value`."""

    description = "a harness of NeMo Evaluator's kind, from an installed package: harness:PACKAGE?eval_type=NAME"

    def __init__(self, name: str, eval_type: str = "", **kwargs: JSON) -> None:
        self.harness = load_harness(name, eval_type, kwargs)

    def tasks(self) -> Iterator[Task]:
        """The rows of the dataset, in their order."""
        for number, row in enumerate(dataset_of(self.harness)):
            try:
                task = task_of(row)
            except (UsageError, AttributeError, TypeError) as error:
                raise UsageError(f"row {number} of get_dataset(): {error}") from None
            if not has_id(row):
                task.id = f"row-{number}"
            yield task

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """What the harness says."""
        verdict = await self.harness.verify(rollout.text, task.answer, **task.fields)
        if not isinstance(verdict, tuple) or len(verdict) != 2:
            raise InvalidReward(f"verify returned {verdict!r:.80}, not a reward and the answer that was read")
        reward, extracted = verdict
        return Score(reward, answer=extracted)


def dataset_of(harness: Harness) -> list[dict[str, JSON]]:
    """The rows of a harness; UsageError where they are none."""
    try:
        rows = harness.get_dataset()
    except (Exception, SystemExit) as error:
        raise UsageError(f"get_dataset() raised {explain(error)}") from error
    if not isinstance(rows, list):
        raise UsageError(f"get_dataset() gave a {type(rows).__name__}, not a list of rows")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UsageError(f"row {number} of get_dataset() is a {type(row).__name__}, not an object")
    return rows


def environment_of(harness: Harness) -> Environment:
    """A harness that was made in Python as an environment. No other process can make it, so none is asked to."""

    class Held(HarnessEnvironment):
        def __init__(self) -> None:
            self.harness = harness

    Held.__name__ = type(harness).__name__
    return Held()


class EnvironmentHarness(Harness):
    """An environment as a harness. Verification runs as in a rollout: with its limits, processes and judge.

    What that needs is opened by the first `verify` and let go of by `close`, or by the end of `async with`.
    """

    def __init__(
        self,
        env: str | Environment,
        eval_type: str = "",
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        settings: Settings = Settings(),  # noqa: B008 - frozen
        judge_name: str = "",
    ) -> None:
        super().__init__(eval_type)
        self._loaded = found(env)
        self._limits, self._settings, self._judge_name = limits, settings, judge_name
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._stage: Stage | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_dataset(self) -> list[dict[str, JSON]]:
        """The environment's tasks as rows."""
        return [row_of(task, self._loaded.spec.tools) for task in given(self._loaded)]

    async def verify(self, response_text: str, expected_answer: str, **kwargs: JSON) -> tuple[float, str | None]:
        """What an answer to the task of a row is worth; RolloutFailed where a rollout would have no score."""
        stage = await self._open()
        unasked = {KEY: {"input": " "}}  # whoever verifies by the answer alone sends no prompt
        task = task_of({**unasked, **kwargs, "expected_answer": expected_answer})
        rollout = Rollout(
            task=task,
            sample=0,
            seed=seed_of(0, task.id, 0),
            messages=[*task.messages, Message("assistant", response_text)],
            turns=[Turn()],
        )
        score = await stage.verify(task, rollout)
        return score.reward, score.answer

    async def _open(self) -> Stage:
        async with self._opening:
            if self._stage is None:
                on = staged(self._loaded, self._limits, self._settings, self._judge_name)
                self._stage = await self._stack.enter_async_context(on)
            return self._stage

    async def close(self) -> None:
        """Let go of processes and connections."""
        self._stage = None
        await self._stack.aclose()


def _look_here(name: str) -> None:
    """A package that is not installed may lie where one works, as other environments do."""
    here = Path.cwd()
    if name.isidentifier() and (here / name).is_dir() and not find_spec(name):
        sys.path.append(str(here))
        importlib.invalidate_caches()


def load_harness(package: str, eval_type: str, arguments: Mapping[str, JSON]) -> Harness:
    """The harness of a package; what is wrong with it is said in one line."""
    where = f"{package}.{MODULE}"
    _look_here(package.partition(".")[0])
    try:
        cls = getattr(importlib.import_module(where), CLASS, None)
    except ModuleNotFoundError as error:
        raise UsageError(f"harness:{package}: no module {error.name}; it must be importable as {where}") from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"harness:{package}: {where} cannot be imported: {explain(error)}") from error
    if cls is None:
        raise UsageError(f"harness:{package}: {where} has no class {CLASS}")
    try:
        made = cls(eval_type=eval_type, **arguments)
    except (Exception, SystemExit) as error:
        raise UsageError(f"harness:{package}: {CLASS}(eval_type={eval_type!r}, ...) raised {explain(error)}") from error
    if not all(callable(getattr(made, name, None)) for name in ("get_dataset", "verify")):
        raise UsageError(f"harness:{package}: {CLASS} has no get_dataset() or no verify()")
    harness: Harness = made
    return harness
