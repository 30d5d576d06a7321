"""Making a book of what NeMo Gym collected: its rollouts, its failures, and what is missing of what was asked for."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from rollbook.book.book import Book, Draft
from rollbook.book.claims import Claim
from rollbook.collect.account import Account
from rollbook.collect.concurrency import Fixed
from rollbook.collect.job import Job
from rollbook.collect.planning import versions
from rollbook.collect.report import Report, report
from rollbook.collect.shift import Shift
from rollbook.collect.worker import Worker
from rollbook.core.failure import KINDS, Failure
from rollbook.core.json import JSON
from rollbook.core.line import SCHEMA
from rollbook.core.manifest import EnvironmentSpec, Limits, Manifest, ModelSpec, Sampling, Settings
from rollbook.core.plan import Part, part
from rollbook.core.rollout import Rollout, Timing
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.errors import InvalidReward, RolloutFailed, UsageError
from rollbook.wire.gym.driving.agent import read_into
from rollbook.wire.gym.driving.collection import Collection, Key, Place, named, ranges, task_in
from rollbook.wire.gym.driving.files import Object
from rollbook.wire.gym.driving.judged import failure_of, score_of
from rollbook.wire.gym.params import KEY
from rollbook.wire.gym.row import TASK_INDEX

WHERE = "import"
AT_ONCE = 16


class Imported(Environment):
    """What rollouts belong to that others played: they are there to be read, not to go on."""

    description = "rollouts that were imported"

    def tasks(self) -> Iterator[Task]:
        """Only the book has them."""
        raise UsageError("imported rollouts have no tasks to ask: run the environment itself")

    async def start(self) -> None:
        """Nobody here can go on with it."""
        raise UsageError("this run was imported: it cannot go on here; give --env to score it again")

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Whoever scored it is elsewhere."""
        raise RolloutFailed("verifier_error", "verify", "it was imported with its score")


async def import_gym(path: Path, out: str | Path, say: Callable[[str], None] = lambda _: None) -> Report:
    """Make a book at `out` of the collection whose rollouts are at `path`; gives its report."""
    held = Collection(path)
    for note in held.notes:
        say(note)
    book, keys = planned(held, path, Path(out))
    await filled(book, Reading(held, keys))
    return report(book.path)


def planned(held: Collection, path: Path, out: Path) -> tuple[Book, dict[str, int]]:
    """The run directory with its tasks and the rollouts that were asked for; and Gym's number for each task."""
    with Draft(out) as draft:
        parts: list[Part] = []
        numbers: dict[str, int] = {}
        seen: set[str] = set()
        for agent, indices in held.agents().items():
            first = len(numbers)
            draft.add_tasks(_tasks(held, indices, numbers, seen), agent)
            parts += parts_of([held.tasks[index].samples for index in indices], first)
        return draft.finish(_manifest(held, path), parts), numbers


def _tasks(held: Collection, indices: list[int], numbers: dict[str, int], seen: set[str]) -> Iterator[Task]:
    for index in indices:
        place = held.tasks[index].place
        row = place.read()
        name = named(row, index, seen)
        numbers[name] = index
        yield task_in(row, name, f"{place.lines.path}: {TASK_INDEX} {index}")


def parts_of(samples: list[set[int]], first: int) -> list[Part]:
    """Which samples are asked of which tasks; neighbours of whom the same is asked go together."""
    found: list[Part] = []
    start = 0
    for at in range(1, len(samples) + 1):
        if at == len(samples) or samples[at] != samples[start]:
            found += [part((first + start, first + at), asked, 1) for asked in ranges(samples[start])]
            start = at
    return found


def _manifest(held: Collection, path: Path) -> Manifest:
    """What is known of who played: the model that the first response names, the sampling that its row asked for."""
    place = next(iter(held.scored.values()), None)
    row = place.read() if place else next(iter(held.tasks.values())).place.read()
    response, params = row.get("response"), row.get(KEY)
    model = response.get("model") if isinstance(response, dict) else None
    asked = params if isinstance(params, dict) else {}
    target = f"{Imported.__module__}:{Imported.__name__}"
    spec = EnvironmentSpec(f"imported {path.name}", target, verify="async")
    return Manifest(
        schema=SCHEMA,
        run=secrets.token_hex(8),
        created=round(time.time(), 3),
        environments=dict.fromkeys(held.agents(), spec),
        model=ModelSpec(str(model or "unknown"), "remote"),
        sampling=_sampling(asked),
        samples=max(len(asked.samples) for asked in held.tasks.values()),
        seed=0,
        limits=Limits(),
        versions=versions(),
    )


def _sampling(asked: Object) -> Sampling:
    names = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_output_tokens"}
    given = {name: asked[key] for name, key in names.items() if isinstance(asked.get(key), int | float)}
    return msgspec.structs.replace(Sampling(), **given)


class Reading:
    """Plays a job by reading what Gym wrote of it."""

    def __init__(self, held: Collection, numbers: dict[str, int]) -> None:
        self._held, self._numbers = held, numbers

    def has(self, task: str, sample: int) -> bool:
        """Whether anything was written of it."""
        return self._held.has(Key(self._numbers[task], sample))

    async def play(self, job: Job, round_number: int) -> tuple[Rollout, RolloutFailed | None]:
        """The rollout as it was written, with its score or its failure."""
        key = Key(self._numbers[job.task.id], job.sample)
        rollout = Rollout(task=job.task, sample=job.sample, seed=0, round=round_number, messages=job.task.messages)
        try:
            self._read(rollout, key)
        except (InvalidReward, UsageError) as error:
            return self._failed(rollout, RolloutFailed("invalid_reward", WHERE, str(error)))
        except RolloutFailed as error:
            return self._failed(rollout, error)
        return rollout, None

    def _read(self, rollout: Rollout, key: Key) -> None:
        if key in self._held.scored:
            row = _told(rollout, self._held.scored[key])
            read_into(rollout, row)
            rollout.score = score_of(row, rollout.task.fields)
            return
        attempts = self._held.failed[key]
        rollout.attempt = len(attempts)
        row = _told(rollout, attempts[-1])
        failure = failure_of(row, WHERE, "agent_error")
        raise failure or RolloutFailed("agent_error", WHERE, "it is among the failures, and does not say why")

    def _failed(self, rollout: Rollout, error: RolloutFailed) -> tuple[Rollout, RolloutFailed]:
        rollout.failure = Failure.of(error)
        return rollout, error


def _told(rollout: Rollout, place: Place) -> Object:
    """A line, and what it tells of when and with which seed it was played."""
    row = place.read()
    response, own = row.get("response"), row.get("rollbook")
    created: JSON = response.get("created_at") if isinstance(response, dict) else None
    rollout.timing = Timing(start=_seconds(created))
    if isinstance(own, dict):
        seed = own.get("seed")
        rollout.seed, rollout.outcome = seed if isinstance(seed, int) else 0, own.get("outcome")
    return row


def _seconds(value: JSON) -> float:
    """A time stamp, if it is one that a journal can hold."""
    try:
        found = float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0
    return found if math.isfinite(found) else 0.0


async def filled(book: Book, reading: Reading) -> None:
    """Write all that was read, as a worker writes what it plays; what nothing is known of stays pending."""
    round_ = book.open_round(Settings(retry=[]))
    account = Account(book, round_.settings)

    def inherited(claim: Claim) -> None:
        account.inherit(claim)
        claim.todo = [todo for todo in claim.todo if reading.has(book.tasks.task(todo[0]).id, todo[1])]
        claim.left = len(claim.todo)

    shift = Shift(book, round_, listener=account.take, inherited=inherited)
    worker = Worker(shift, reading, Fixed(AT_ONCE), round_.number, dict.fromkeys(KINDS, 1))
    await shift.join()
    try:
        await worker.run(lambda: None)
    finally:
        await shift.leave()
    if shift.trouble:
        raise shift.trouble
