"""Reproducibility: an environment made again in another process must have the same tasks.

`python -m rollbook.checks.reproducibility REQUEST`, started by `check`, writes the digest of every task next to the
request, so that tasks which depend on the process are found.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from itertools import islice
from pathlib import Path

import msgspec

from rollbook.checks.findings import Finding, make_finding
from rollbook.core import EnvironmentSpec, Task, encode
from rollbook.engine import AnswerScorer
from rollbook.environments import load_environment
from rollbook.errors import RollbookError
from rollbook.processes import Child, die_with_parent, module_argv

REPRODUCIBILITY_CHECK = "it can be made elsewhere"
TIMEOUT_S = 120.0


class MakeRequest(msgspec.Struct, frozen=True):
    """The environment to make, and how many of its tasks to compare."""

    spec: EnvironmentSpec
    run: str
    tasks: int


class MakeResult(msgspec.Struct, frozen=True):
    """The digests of its tasks, or the reason why there are none."""

    digests: list[str] = []
    error: str = ""


def task_digest(task: Task) -> str:
    """Return a short digest of a task."""
    line = task.line()
    return hashlib.sha256(encode([line.id, line.messages, line.answer, line.fields])).hexdigest()[:16]


async def check_reproducibility(scorer: AnswerScorer, tasks: list[Task]) -> Finding:
    """Make the environment from its spec in a fresh process, and compare its tasks with ours."""
    made = await make_in_process(scorer, len(tasks))
    if made.error:
        return Finding(REPRODUCIBILITY_CHECK, "unsound", len(tasks), made.error)
    pairs = zip(tasks, [*made.digests, *[""] * len(tasks)], strict=False)
    other = [task.id for task, theirs in pairs if task_digest(task) != theirs]
    words = f"{len(other)} tasks are not the same in another process: tasks() must not depend on chance or on set order"
    return make_finding(
        REPRODUCIBILITY_CHECK,
        len(tasks),
        other,
        "unsound",
        "from its spec and arguments alone, with the same tasks",
        words,
    )


async def make_in_process(scorer: AnswerScorer, tasks: int) -> MakeResult:
    """Make the environment in another process, within a deadline."""
    request = scorer.folder / "remake.json"
    request.write_bytes(encode(MakeRequest(scorer.spec, str(scorer.folder), tasks)))
    child = Child(module_argv("rollbook.checks.reproducibility", str(request)))
    try:
        code = await child.wait(TIMEOUT_S)
    except TimeoutError:
        return MakeResult(error=f"it was not made within {TIMEOUT_S:g} s")
    finally:
        await asyncio.shield(child.kill_tree())
    result = request.with_suffix(".made")
    if not result.exists():
        tail = child.last_log_line()
        return MakeResult(error=f"its process ended with {code}{': ' + tail if tail else ''}")
    return msgspec.json.decode(result.read_bytes(), type=MakeResult)


def make_digests(request: MakeRequest) -> MakeResult:
    """Make the environment of a request: runs in the other process."""
    try:
        environment = load_environment(request.spec, Path(request.run))
        return MakeResult([task_digest(task) for task in islice(environment.tasks(), request.tasks)])
    except RollbookError as error:
        return MakeResult(error=str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is the finding
        return MakeResult(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    die_with_parent()
    path = Path(sys.argv[1])
    path.with_suffix(".made").write_bytes(
        encode(make_digests(msgspec.json.decode(path.read_bytes(), type=MakeRequest)))
    )
