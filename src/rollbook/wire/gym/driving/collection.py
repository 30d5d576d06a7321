"""What one collection of NeMo Gym holds: which rollouts were asked for, and where each one's line stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeGuard

from rollbook.core.json import JSON, encode
from rollbook.core.task import Task
from rollbook.environments.rows import IDS
from rollbook.errors import UsageError
from rollbook.wire.gym.driving.files import Files, Lines, Object
from rollbook.wire.gym.params import KEY, read_params
from rollbook.wire.gym.row import AGENT, ANSWERS, ROLLOUT_INDEX, TASK_INDEX
from rollbook.wire.gym.verdict import FAILURE

UNNAMED = "agent"


class Key(NamedTuple):
    """A rollout by Gym's own counting."""

    task: int
    sample: int


class Place(NamedTuple):
    """A line: in which file, and at which offset."""

    lines: Lines
    offset: int

    def read(self) -> Object:
        """What stands there."""
        return self.lines.at(self.offset)


class Asked:
    """One task: who plays it, where its row stands, which of its rollouts were asked for."""

    def __init__(self, agent: str, place: Place) -> None:
        self.agent, self.place = agent, place
        self.samples: set[int] = set()


class Collection:
    """Reads the files of a collection once, and keeps where everything stands. `notes` says what was left out."""

    def __init__(self, path: Path) -> None:
        files = Files(path)
        self.tasks: dict[int, Asked] = {}
        self.scored: dict[Key, Place] = {}
        self.failed: dict[Key, list[Place]] = {}
        self.notes: list[str] = []
        if files.inputs.is_file():
            for key, place, row in self._rows(files.inputs):
                self._ask(key, place, row)
        known = bool(self.tasks)
        self._take_scored(path, known)
        if files.failures.is_file():
            self._take_failed(files.failures, known)
        if not self.tasks:
            raise UsageError(f"{path}: holds no rollouts")

    def _rows(self, path: Path) -> Iterator[tuple[Key, Place, Object]]:
        lines, counting = Lines(path), Counting()
        for offset, row in lines:
            yield key_of(row, path) or counting.key(row), Place(lines, offset), row
        if lines.torn:
            self.notes.append(f"{path}: its last line is cut off, and was left out")

    def _ask(self, key: Key, place: Place, row: Object) -> None:
        asked = self.tasks.setdefault(key.task, Asked(agent_in(row), place))
        asked.samples.add(key.sample)

    def _take_scored(self, path: Path, known: bool) -> None:
        twice = 0
        for key, place, row in self._rows(path):
            self._check_asked(key, known, path)
            self._ask(key, place, row)
            twice += key in self.scored
            if FAILURE in row:
                self.failed.setdefault(key, []).append(place)
            else:
                self.scored.setdefault(key, place)
        if twice:
            self.notes.append(f"{path}: {twice} rollouts are there more than once; the first of each counts")

    def _take_failed(self, path: Path, known: bool) -> None:
        for key, place, row in self._rows(path):
            self._check_asked(key, known, path)
            self._ask(key, place, row)
            self.failed.setdefault(key, []).append(place)

    def _check_asked(self, key: Key, known: bool, path: Path) -> None:
        if known and key.sample not in getattr(self.tasks.get(key.task), "samples", ()):
            raise UsageError(f"{path}: {TASK_INDEX} {key.task}, {ROLLOUT_INDEX} {key.sample} was never asked for")

    def agents(self) -> dict[str, list[int]]:
        """The tasks of each agent, in their order."""
        found: dict[str, list[int]] = {}
        for index in sorted(self.tasks):
            found.setdefault(self.tasks[index].agent, []).append(index)
        return found

    def has(self, key: Key) -> bool:
        """Whether anything came of a rollout."""
        return key in self.scored or key in self.failed


class Counting:
    """Numbers lines that have none, as Gym does: those that ask the same are the rollouts of one task, in order."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, int] = {}
        self._rollouts: Counter[int] = Counter()

    def key(self, row: Object) -> Key:
        """The number of the next line."""
        asked = blake2b(encode(row.get(KEY)), digest_size=16).digest()
        task = self._tasks.setdefault(asked, len(self._tasks))
        self._rollouts[task] += 1
        return Key(task, self._rollouts[task] - 1)


def key_of(row: Object, path: Path) -> Key | None:
    """Which rollout a line says that it is of; None where it does not say it."""
    if TASK_INDEX not in row and ROLLOUT_INDEX not in row:
        return None
    task, sample = row.get(TASK_INDEX), row.get(ROLLOUT_INDEX)
    if not _is_count(task) or not _is_count(sample):
        raise UsageError(f"{path}: {TASK_INDEX} {task!r}, {ROLLOUT_INDEX} {sample!r}: whole numbers are needed")
    return Key(task, sample)


def _is_count(value: JSON) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def agent_in(row: Object) -> str:
    """Who played it."""
    given = row.get(AGENT)
    name = given.get("name") if isinstance(given, dict) else None
    return name if isinstance(name, str) and name else UNNAMED


def named(row: Object, index: int, seen: set[str]) -> str:
    """The id of a task: its row's own, if it has one that no other has."""
    own = row.get("rollbook")
    ours = own.get("task") if isinstance(own, dict) else None
    given: JSON = ours or next((row[name] for name in IDS if row.get(name) is not None), f"task-{index}")
    name = str(given) if str(given) not in seen else f"{given}@{index}"
    seen.add(name)
    return name


def task_in(row: Object, name: str, where: str) -> Task:
    """The task of a line, its row kept whole."""
    try:
        params = read_params(row.get(KEY))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    answer = next((row[key] for key in ANSWERS if row.get(key) is not None), None)
    task = Task(name, messages=params.messages, answer=answer)
    left_out = ("response", "reward", ROLLOUT_INDEX, "rollbook")
    task.fields = {key: value for key, value in row.items() if key not in left_out}
    return task


def ranges(samples: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges.

    >>> ranges({0, 1, 2, 5})
    [(0, 3), (5, 6)]
    """
    found: list[tuple[int, int]] = []
    for sample in sorted(samples):
        if found and found[-1][1] == sample:
            found[-1] = (found[-1][0], sample + 1)
        else:
            found.append((sample, sample + 1))
    return found
