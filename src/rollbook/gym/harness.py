"""Harnesses as in NeMo Evaluator, a dataset with a verifier; a harness as an environment, and the reverse.

Packages are found by convention: PACKAGE.gym_harness.Harness(eval_type=..., **arguments). `open_runtime` opens an
environment outside a run, for a harness or for a server.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from rollbook.core import JSON, Limits, Message, Rollout, Score, Settings, Task, Turn, derive_seed
from rollbook.engine import environment_name, iterate_tasks, load_environment, open_environments
from rollbook.environments import (
    Environment,
    EnvironmentRuntime,
    LoadedEnvironment,
    explain_error,
    open_roles,
    resolve_roles_for,
    write_snapshot,
)
from rollbook.errors import InvalidReward, UsageError
from rollbook.gym.rows import ID_KEYS, make_row, read_task
from rollbook.models import CREATE_PARAMS

FOLDER_PREFIX, LOCK_NAME = "rollbook-gym-", ".lock"
_FRESH_S = 60.0


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that is deleted with the context; what killed processes left of theirs is deleted first.

    A lock shows whether the owner is alive: unlike a process id, it works from any container that sees the folder.
    """
    remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as path, open(Path(path) / LOCK_NAME, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(path)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary folders of processes that were killed; one that was just made may not be locked yet."""
    for path in folder.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime < _FRESH_S:
                continue
            with open(path / LOCK_NAME, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


@asynccontextmanager
async def open_runtime(
    loaded: LoadedEnvironment, limits: Limits, settings: Settings, judge_name: str = ""
) -> AsyncIterator[EnvironmentRuntime]:
    """Open the runtime that a run would have: source pinned, sync methods in processes, the judge opened first."""
    meaning, settings = resolve_roles_for(loaded, settings, judge_name)
    name = environment_name(loaded)
    with temporary_folder() as folder:
        pinned = write_snapshot(loaded, folder / "source")
        async with (
            open_roles(meaning, settings) as roles,
            open_environments(
                {name: pinned},
                limits,
                run=folder,
                hosts=settings.hosts,
                instances={name: loaded.instance},
                roles=roles,
                outage_s=settings.outage_s,
            ) as runtimes,
        ):
            yield runtimes[name]


HARNESS_MODULE, HARNESS_CLASS = "gym_harness", "Harness"


class Harness(ABC):
    """The interface of a package: rows to ask, and the reward of an answer to one."""

    def __init__(self, eval_type: str, **kwargs: JSON) -> None:
        self.eval_type = eval_type

    @abstractmethod
    def get_dataset(self) -> list[dict[str, JSON]]:
        """Return the rows: `responses_create_params` with the input, `expected_answer`, further fields for `verify`."""

    @abstractmethod
    async def verify(self, response_text: str, expected_answer: str, **kwargs: JSON) -> tuple[float, str | None]:
        """Return the reward of an answer, and the answer as it was read; `kwargs` are the other fields of the row."""


class HarnessEnvironment(Environment):
    """A harness as an environment: `harness:PACKAGE?eval_type=NAME&key=value`."""

    kind = "adapter"
    description = "a harness of NeMo Evaluator's kind, from an installed package: harness:PACKAGE?eval_type=NAME"

    def __init__(self, name: str, eval_type: str = "", **kwargs: JSON) -> None:
        self.harness = load_harness(name, eval_type, kwargs)

    def tasks(self) -> Iterator[Task]:
        """Yield the rows of the dataset, in their order."""
        for number, row in enumerate(read_harness_dataset(self.harness)):
            try:
                task = read_task(row)
            except (UsageError, AttributeError, TypeError) as error:
                raise UsageError(f"row {number} of get_dataset(): {error}") from None
            if all(row.get(name) is None for name in ID_KEYS):
                task.id = f"row-{number}"
            yield task

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Return the harness's verdict."""
        verdict = await self.harness.verify(rollout.text, task.answer, **task.fields)
        if not isinstance(verdict, tuple) or len(verdict) != 2:
            raise InvalidReward(f"verify returned {verdict!r:.80}, not a reward and the answer that was read")
        reward, extracted = verdict
        return Score(reward, answer=extracted)


def read_harness_dataset(harness: Harness) -> list[dict[str, JSON]]:
    """Return the rows of a harness; UsageError if they are not a list of objects."""
    try:
        rows = harness.get_dataset()
    except (Exception, SystemExit) as error:
        raise UsageError(f"get_dataset() raised {explain_error(error)}") from error
    if not isinstance(rows, list):
        raise UsageError(f"get_dataset() gave a {type(rows).__name__}, not a list of rows")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UsageError(f"row {number} of get_dataset() is a {type(row).__name__}, not an object")
    return rows


class EnvironmentHarness(Harness):
    """An environment as a harness. Verification runs as in a rollout: with its limits, processes and judge.

    The first `verify` opens what that needs; `close`, or the end of `async with`, releases it.
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
        self._loaded = load_environment(env)
        self._limits, self._settings, self._judge_name = limits, settings, judge_name
        self._stack = AsyncExitStack()
        self._open_lock = asyncio.Lock()
        self._runtime: EnvironmentRuntime | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_dataset(self) -> list[dict[str, JSON]]:
        """Return the environment's tasks as rows."""
        return [make_row(task, self._loaded.spec.tools) for task in iterate_tasks(self._loaded)]

    async def verify(self, response_text: str, expected_answer: str, **kwargs: JSON) -> tuple[float, str | None]:
        """Return the reward of an answer to the task of a row; RolloutFailed where a rollout would have no score."""
        runtime = await self._open()
        default_prompt = {CREATE_PARAMS: {"input": " "}}  # callers that verify by the answer alone send no prompt
        task = read_task({**default_prompt, **kwargs, "expected_answer": expected_answer})
        rollout = Rollout(
            task=task,
            sample=0,
            seed=derive_seed(0, task.id, 0),
            messages=[*task.messages, Message("assistant", response_text)],
            turns=[Turn()],
        )
        score = await runtime.verify(task, rollout)
        return score.reward, score.answer

    async def _open(self) -> EnvironmentRuntime:
        async with self._open_lock:
            if self._runtime is None:
                runtime = open_runtime(self._loaded, self._limits, self._settings, self._judge_name)
                self._runtime = await self._stack.enter_async_context(runtime)
            return self._runtime

    async def close(self) -> None:
        """Release processes and connections."""
        self._runtime = None
        await self._stack.aclose()


def _add_working_directory(name: str) -> None:
    """Let a package that is not installed be found in the working directory, like other environments."""
    here = Path.cwd()
    if name.isidentifier() and (here / name).is_dir() and not find_spec(name):
        sys.path.append(str(here))
        importlib.invalidate_caches()


def load_harness(package: str, eval_type: str, arguments: Mapping[str, JSON]) -> Harness:
    """Load the harness of a package; UsageError explains in one line what is wrong with it."""
    where = f"{package}.{HARNESS_MODULE}"
    _add_working_directory(package.partition(".")[0])
    try:
        cls = getattr(importlib.import_module(where), HARNESS_CLASS, None)
    except ModuleNotFoundError as error:
        raise UsageError(f"harness:{package}: no module {error.name}; it must be importable as {where}") from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"harness:{package}: {where} cannot be imported: {explain_error(error)}") from error
    if cls is None:
        raise UsageError(f"harness:{package}: {where} has no class {HARNESS_CLASS}")
    try:
        instance = cls(eval_type=eval_type, **arguments)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"harness:{package}: {HARNESS_CLASS}(eval_type={eval_type!r}, ...) raised {explain_error(error)}"
        ) from error
    if not all(callable(getattr(instance, name, None)) for name in ("get_dataset", "verify")):
        raise UsageError(f"harness:{package}: {HARNESS_CLASS} has no get_dataset() or no verify()")
    harness: Harness = instance
    return harness
