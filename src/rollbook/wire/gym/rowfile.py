"""The rows of an environment in a file, for Gym to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from rollbook.collect.planning import given
from rollbook.collect.tablefile import write_whole_lines
from rollbook.core.json import JSON, encode
from rollbook.core.task import Task
from rollbook.environments.registry import Loaded
from rollbook.environments.source import explain
from rollbook.errors import UsageError
from rollbook.wire.gym.harness import HarnessEnvironment, dataset_of
from rollbook.wire.gym.row import AGENT, row_of, task_of


def rows_of(loaded: Loaded, agent: str = "") -> Iterator[dict[str, JSON]]:
    """The environment's own tasks as rows, each with its tools; the rows of a harness as they are."""
    if isinstance(loaded.instance, HarnessEnvironment):
        ref = {AGENT: {"type": "responses_api_agents", "name": agent}} if agent else {}
        for number, row in enumerate(dataset_of(loaded.instance.harness)):
            _check(row, number)
            yield {**row, **ref}
        return
    for task in given(loaded):
        yield row_of(task, [*loaded.spec.tools, *_offered(loaded, task)], agent)


def _check(row: dict[str, JSON], number: int) -> None:
    try:
        task_of(row)
    except UsageError as error:
        raise UsageError(f"row {number} of get_dataset(): {error}") from None


def _offered(loaded: Loaded, task: Task) -> Iterable[JSON]:
    if not loaded.spec.offers:
        return ()
    try:
        return loaded.instance.offers(task)
    except Exception as error:
        raise UsageError(f"{loaded.cls.__name__}.offers() raised {explain(error)} for task {task.id!r}") from error


def write_rows(loaded: Loaded, path: Path, *, agent: str = "", limit: int | None = None) -> int:
    """Write the rows to a file; how many there are."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent}: {error.strerror}") from None
    count = write_whole_lines(path, map(_line, islice(rows_of(loaded, agent), limit)))
    if not count:
        raise UsageError(f"{loaded.cls.__name__} has no tasks")
    return count


def _line(row: dict[str, JSON]) -> bytes:
    """A row as JSON, once it is known that its task can be read back from it."""
    try:
        task_of(row)
        return encode(row)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"row {row.get('id')!r} does not fit JSON: {error}") from None
