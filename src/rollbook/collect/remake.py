"""An environment made again in another process: `python -m rollbook.collect.remake REQUEST`, started by `check`.

Writes the digest of every task beside the request, so that tasks which depend on the process are found out.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from rollbook.collect.finding import Finding, judged
from rollbook.collect.trial import Trial
from rollbook.core.json import encode
from rollbook.core.manifest import EnvironmentSpec
from rollbook.core.task import Task
from rollbook.environments.snapshot import load
from rollbook.errors import RollbookError
from rollbook.processes.child import Child, module_argv
from rollbook.processes.life import die_with_parent

CHECK = "it can be made elsewhere"
WITHIN_S = 120.0


class Remake(msgspec.Struct, frozen=True):
    """What to make, and how many tasks of it to look at."""

    spec: EnvironmentSpec
    run: str
    tasks: int


class Made(msgspec.Struct, frozen=True):
    """What came of it: the digests of its tasks, or why there are none."""

    digests: list[str] = []
    error: str = ""


def digest(task: Task) -> str:
    """A task in a few letters."""
    line = task.line()
    return hashlib.sha256(encode([line.id, line.messages, line.answer, line.fields])).hexdigest()[:16]


async def elsewhere(trial: Trial, tasks: list[Task]) -> Finding:
    """Make the environment from its spec in a fresh process, and compare its tasks with ours."""
    made = await remade(trial, len(tasks))
    if made.error:
        return Finding(CHECK, "unsound", len(tasks), made.error)
    pairs = zip(tasks, [*made.digests, *[""] * len(tasks)], strict=False)
    other = [task.id for task, theirs in pairs if digest(task) != theirs]
    words = f"{len(other)} tasks are not the same in another process: tasks() must not depend on chance or on set order"
    return judged(CHECK, len(tasks), other, "unsound", "from its spec and arguments alone, with the same tasks", words)


async def remade(trial: Trial, tasks: int) -> Made:
    """What another process makes of the environment, within a deadline."""
    request = trial.folder / "remake.json"
    request.write_bytes(encode(Remake(trial.spec, str(trial.folder), tasks)))
    child = Child(module_argv("rollbook.collect.remake", str(request)))
    try:
        code = await child.exited(WITHIN_S)
    except TimeoutError:
        return Made(error=f"it was not made within {WITHIN_S:g} s")
    finally:
        await asyncio.shield(child.kill_tree())
    answer = request.with_suffix(".made")
    if not answer.exists():
        tail = child.last_words()
        return Made(error=f"its process ended with {code}{': ' + tail if tail else ''}")
    return msgspec.json.decode(answer.read_bytes(), type=Made)


def make(request: Remake) -> Made:
    """Over there."""
    try:
        environment = load(request.spec, Path(request.run))
        return Made([digest(task) for task in _first(environment.tasks(), request.tasks)])
    except RollbookError as error:
        return Made(error=str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Made(error=f"{type(error).__name__}: {error}")


def _first(tasks: Iterable[Task], count: int) -> Iterable[Task]:
    return islice(tasks, count)


if __name__ == "__main__":
    die_with_parent()
    path = Path(sys.argv[1])
    path.with_suffix(".made").write_bytes(encode(make(msgspec.json.decode(path.read_bytes(), type=Remake))))
