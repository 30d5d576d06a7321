"""Import what NeMo Gym collected as a book: its rollouts, its failures, and what is missing of what was requested."""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from rollbook.book import Book, BookDraft, Claim
from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    SCHEMA_VERSION,
    EnvironmentSpec,
    Failure,
    Limits,
    Manifest,
    ModelSpec,
    Part,
    Rollout,
    Sampling,
    Score,
    Settings,
    Task,
    Timing,
    encode,
    iterate_lines,
    make_part,
)
from rollbook.engine import (
    AttemptResult,
    BookJobSource,
    FixedLimit,
    ProgressCounter,
    RolloutJob,
    Worker,
    package_versions,
)
from rollbook.environments import ID_FIELDS, Environment
from rollbook.errors import InvalidReward, RolloutFailed, UsageError
from rollbook.gym.client.agents import DEFAULT_AGENT, read_rollout_into
from rollbook.gym.client.export_run import (
    IMPORTED_LINE,
    IMPORTED_PREFIX,
    TASK_RECORD,
    CollectionFiles,
    GymExport,
    find_difference,
    restore_turns,
)
from rollbook.gym.client.http_client import parse_json
from rollbook.gym.rows import (
    AGENT_REF,
    FAILURE_CLASS,
    ROLLBOOK_KEY,
    ROLLOUT_INDEX,
    TASK_INDEX,
    is_index,
    read_expected_answer,
    read_failure,
    read_score,
)
from rollbook.models import CREATE_PARAMS, read_create_params
from rollbook.reports import Report, make_report

JsonObject = dict[str, JSON]
T = TypeVar("T")
D = TypeVar("D")


class JsonLinesFile:
    """A file of JSON objects, one per line. `torn`: the last line is cut off."""

    def __init__(self, path: Path) -> None:
        self.path, self.torn = path, False

    def __iter__(self) -> Iterator[tuple[int, JsonObject]]:
        """Yield each object with its offset; anything but a torn end is refused by its line."""
        try:
            with open(self.path, "rb") as file:
                for number, offset, line in iterate_lines(file):
                    value = self._parse(line, number)
                    if value is None:
                        return
                    yield offset, value
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror}") from None

    def _parse(self, line: bytes, number: int) -> JsonObject | None:
        try:
            value = parse_json(line)
        except ValueError as error:
            if not line.endswith(b"\n"):  # the last line of a collection that was killed
                self.torn = True
                return None
            raise UsageError(f"{self.path}:{number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise UsageError(f"{self.path}:{number}: a JSON object is needed, this is {type(value).__name__}")
        return value


class RolloutKey(NamedTuple):
    """A rollout by Gym's own indices."""

    task: int
    sample: int


class LinePosition(NamedTuple):
    """The position of a line: its file and offset."""

    path: Path
    offset: int

    def read(self) -> JsonObject:
        """Return the object at this position."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            value: JsonObject = parse_json(file.readline())
        return value


class RequestedTask(msgspec.Struct):
    """One task: its environment, the position of its row, and the samples that were requested."""

    env: str
    position: LinePosition
    samples: set[int] = set()


class GymCollection:
    """Indexes the files of a collection in one pass. `notes` lists what was left out."""

    def __init__(self, path: Path) -> None:
        files = CollectionFiles(path)
        self.tasks: dict[int, RequestedTask] = {}
        self.scored: dict[RolloutKey, LinePosition] = {}
        self.failed: dict[RolloutKey, list[LinePosition]] = {}
        self.notes: list[str] = []
        if files.inputs.is_file():
            for key, place, row in self._read_rows(files.inputs):
                self._add_request(key, place, row)
        known = bool(self.tasks)
        self._read_results(path, known)
        if files.failures.is_file():
            self._read_results(files.failures, known, all_failed=True)
        if not self.tasks:
            raise UsageError(f"{path}: holds no rollouts")

    def _read_rows(self, path: Path) -> Iterator[tuple[RolloutKey, LinePosition, JsonObject]]:
        lines, numbering = JsonLinesFile(path), RolloutNumbering()
        for offset, row in lines:
            yield read_rollout_key(row, path) or numbering.next_key(row), LinePosition(path, offset), row
        if lines.torn:
            self.notes.append(f"{path}: its last line is cut off, and was left out")

    def _add_request(self, key: RolloutKey, position: LinePosition, row: JsonObject) -> None:
        request = self.tasks.setdefault(key.task, RequestedTask(read_environment_name(row), position))
        request.samples.add(key.sample)

    def _read_results(self, path: Path, known: bool, *, all_failed: bool = False) -> None:
        repeated = 0
        for key, place, row in self._read_rows(path):
            if known and key.sample not in getattr(self.tasks.get(key.task), "samples", ()):
                raise UsageError(f"{path}: {TASK_INDEX} {key.task}, {ROLLOUT_INDEX} {key.sample} was never requested")
            self._add_request(key, place, row)
            repeated += key in self.scored and not all_failed
            if all_failed or FAILURE_CLASS in row:
                self.failed.setdefault(key, []).append(place)
            else:
                self.scored.setdefault(key, place)
        if repeated:
            self.notes.append(f"{path}: {repeated} rollouts occur more than once; the first of each counts")

    def tasks_by_environment(self) -> dict[str, list[int]]:
        """Return the tasks of each environment, in their order."""
        by_environment: dict[str, list[int]] = {}
        for index in sorted(self.tasks):
            by_environment.setdefault(self.tasks[index].env, []).append(index)
        return by_environment

    def has(self, key: RolloutKey) -> bool:
        """Whether a rollout has a result."""
        return key in self.scored or key in self.failed


class RolloutNumbering:
    """Numbers lines without indices as Gym does: lines with equal parameters are the samples of one task, in order."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, int] = {}
        self._rollouts: Counter[int] = Counter()

    def next_key(self, row: JsonObject) -> RolloutKey:
        """Return the key of the next line."""
        digest = blake2b(encode(row.get(CREATE_PARAMS)), digest_size=16).digest()
        task = self._tasks.setdefault(digest, len(self._tasks))
        self._rollouts[task] += 1
        return RolloutKey(task, self._rollouts[task] - 1)


def read_rollout_key(row: JsonObject, path: Path) -> RolloutKey | None:
    """Return the rollout key in a line; None if it has none."""
    if TASK_INDEX not in row and ROLLOUT_INDEX not in row:
        return None
    task, sample = row.get(TASK_INDEX), row.get(ROLLOUT_INDEX)
    if not is_index(task) or not is_index(sample):
        raise UsageError(f"{path}: {TASK_INDEX} {task!r}, {ROLLOUT_INDEX} {sample!r}: whole numbers are needed")
    return RolloutKey(task, sample)


def read_own_record(row: JsonObject) -> JsonObject:
    """Return what our own export says of a row; empty for a row that Gym wrote."""
    own = row.get(ROLLBOOK_KEY)
    return own if isinstance(own, dict) else {}


def read_environment_name(row: JsonObject) -> str:
    """Return the environment of a row: the one that was exported, else the agent that ran the row."""
    own = read_own_record(row).get("env")
    if isinstance(own, str) and own:
        return own
    reference = row.get(AGENT_REF)
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) and name else DEFAULT_AGENT


def choose_task_id(row: JsonObject, index: int, seen: set[str]) -> str:
    """Return the id of a task: the row's own, if it has one that no other row has."""
    stored = read_own_record(row).get("task")
    task_id: JSON = stored or next((row[name] for name in ID_FIELDS if row.get(name) is not None), f"task-{index}")
    name = str(task_id) if str(task_id) not in seen else f"{task_id}@{index}"
    seen.add(name)
    return name


def read_task_with_row(row: JsonObject, name: str, where: str) -> Task:
    """Return the task of a line, with the whole row as its fields."""
    try:
        params = read_create_params(row.get(CREATE_PARAMS))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    task = Task(name, messages=params.messages, answer=read_expected_answer(row))
    left_out = ("response", "reward", ROLLOUT_INDEX, ROLLBOOK_KEY)
    task.fields = {key: value for key, value in row.items() if key not in left_out}
    if record := {name: value for name, value in read_own_record(row).items() if name in TASK_RECORD}:
        task.fields[ROLLBOOK_KEY] = record
    return task


def to_ranges(samples: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges.

    >>> to_ranges({0, 1, 2, 5})
    [(0, 3), (5, 6)]
    """
    ranges: list[tuple[int, int]] = []
    for sample in sorted(samples):
        if ranges and ranges[-1][1] == sample:
            ranges[-1] = (ranges[-1][0], sample + 1)
        else:
            ranges.append((sample, sample + 1))
    return ranges


IMPORT_STEP = "import"
CONCURRENCY = 16


class ImportedEnvironment(Environment):
    """The environment of imported rollouts: they can be read, but not continued."""

    description = "rollouts that were imported"

    def tasks(self) -> Iterator[Task]:
        """Refuse: only the book has the tasks."""
        raise UsageError("imported rollouts have no tasks to ask: run the environment itself")

    async def start(self) -> None:
        """Refuse: an imported run cannot be continued here."""
        raise UsageError("this run was imported: it cannot be continued here; give --env to score it again")

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Refuse: the environment that scored it is not available here."""
        raise RolloutFailed("verifier_error", "verify", "it was imported with its score")


async def import_gym(path: Path, out: str | Path, say: Callable[[str], None] = lambda _: None) -> Report:
    """Create a book at `out` from the collection whose rollouts are at `path`; return its report."""
    collection = GymCollection(path)
    for note in collection.notes:
        say(note)
    book, keys = create_book(collection, path, Path(out))
    await fill_book(book, CollectionReader(collection, keys, GymExport(book)))
    return make_report(book.path)


def create_book(collection: GymCollection, path: Path, out: Path) -> tuple[Book, dict[str, int]]:
    """Create the run directory with the tasks and requested rollouts; return it with Gym's index of each task."""
    with BookDraft(out) as draft:
        parts: list[Part] = []
        numbers: dict[str, int] = {}
        seen: set[str] = set()
        for env, indices in collection.tasks_by_environment().items():
            first = len(numbers)
            draft.add_tasks(_read_tasks(collection, indices, numbers, seen), env)
            parts += plan_parts([collection.tasks[index].samples for index in indices], first)
        return draft.finish(_make_manifest(collection, path), parts), numbers


def _read_tasks(
    collection: GymCollection, indices: list[int], numbers: dict[str, int], seen: set[str]
) -> Iterator[Task]:
    for index in indices:
        position = collection.tasks[index].position
        row = position.read()
        name = choose_task_id(row, index, seen)
        numbers[name] = index
        yield read_task_with_row(row, name, f"{position.path}: {TASK_INDEX} {index}")


def plan_parts(samples: list[set[int]], first: int) -> list[Part]:
    """Return which samples are requested of which tasks; neighbouring tasks with equal samples share a part."""
    parts: list[Part] = []
    start = 0
    for end in range(1, len(samples) + 1):
        if end == len(samples) or samples[end] != samples[start]:
            parts += [
                make_part((first + start, first + end), samples_range, 1) for samples_range in to_ranges(samples[start])
            ]
            start = end
    return parts


def _make_manifest(collection: GymCollection, path: Path) -> Manifest:
    """Describe the collection: the model that the first response names, and the sampling that its row requests."""
    position = next(iter(collection.scored.values()), None)
    row = position.read() if position else next(iter(collection.tasks.values())).position.read()
    response, params = row.get("response"), row.get(CREATE_PARAMS)
    model = response.get("model") if isinstance(response, dict) else None
    asked = params if isinstance(params, dict) else {}
    target = f"{ImportedEnvironment.__module__}:{ImportedEnvironment.__name__}"
    spec = EnvironmentSpec(f"{IMPORTED_PREFIX}{path.name}", target, verify="async")
    return Manifest(
        schema=SCHEMA_VERSION,
        run=secrets.token_hex(8),
        created=round(time.time(), 3),
        environments=dict.fromkeys(collection.tasks_by_environment(), spec),
        model=ModelSpec(str(model or "unknown"), "remote"),
        sampling=_read_sampling(asked),
        samples=max(len(asked.samples) for asked in collection.tasks.values()),
        seed=0,
        limits=Limits(),
        versions=package_versions(),
    )


def _read_sampling(params: JsonObject) -> Sampling:
    names = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_output_tokens"}
    values = {name: params[key] for name, key in names.items() if isinstance(params.get(key), int | float)}
    return msgspec.structs.replace(Sampling(), **values)


class CollectionReader:
    """Runs a job by reading what Gym wrote about it. `export` says what would be written of it again."""

    def __init__(self, collection: GymCollection, numbers: dict[str, int], export: GymExport) -> None:
        self._collection, self._numbers, self._export = collection, numbers, export

    def has(self, task: str, sample: int) -> bool:
        """Whether Gym wrote anything about a rollout."""
        return self._collection.has(RolloutKey(self._numbers[task], sample))

    async def run_attempt(self, job: RolloutJob, round_number: int) -> AttemptResult:
        """Return the rollout as Gym wrote it, with its score or its failure."""
        key = RolloutKey(self._numbers[job.task.id], job.sample)
        rollout = Rollout(task=job.task, sample=job.sample, seed=0, round=round_number, messages=job.task.messages)
        try:
            self._read_rollout(rollout, key)
        except (InvalidReward, UsageError) as error:
            return self._record_failure(rollout, RolloutFailed("invalid_reward", IMPORT_STEP, str(error)))
        except RolloutFailed as error:
            return self._record_failure(rollout, error)
        return rollout, None

    def _read_rollout(self, rollout: Rollout, key: RolloutKey) -> None:
        if key in self._collection.scored:
            self._read_scored(rollout, self._collection.scored[key].read())
            return
        attempts = self._collection.failed[key]
        row = attempts[-1].read()
        read_record_into(rollout, row)
        rollout.attempt = len(attempts)
        failure = read_exported_failure(row) or read_failure(row, IMPORT_STEP, "agent_error")
        raise failure or RolloutFailed("agent_error", IMPORT_STEP, "it is among the failures, without a reason")

    def _read_scored(self, rollout: Rollout, row: JsonObject) -> None:
        read_record_into(rollout, row)
        read_rollout_into(rollout, row)
        own = read_own_record(row)
        rollout.turns = restore_turns(rollout.turns, own.get("turns"))
        rollout.score = read_score(row, rollout.task.fields)
        if not own and (difference := find_difference(self._export.scored_row(rollout), row)):
            rollout.outcome = {IMPORTED_LINE: difference}

    def _record_failure(self, rollout: Rollout, error: RolloutFailed) -> tuple[Rollout, RolloutFailed]:
        rollout.failure = Failure.from_error(error)
        return rollout, error


def read_record_into(rollout: Rollout, row: JsonObject) -> None:
    """Copy the times of a line into the rollout, and for a line that we exported its seed, attempt and outcome."""
    response, own = row.get("response"), read_own_record(row)
    created: JSON = response.get("created_at") if isinstance(response, dict) else None
    rollout.timing = Timing(start=_read_timestamp(created))
    if isinstance(timing := own.get("timing"), dict):
        rollout.timing = _convert_or(timing, Timing, rollout.timing)
    rollout.seed = _convert_or(own.get("seed"), int, 0)
    rollout.attempt = _convert_or(own.get("attempt"), int, 1)
    rollout.outcome = own.get("outcome")


def read_exported_failure(row: JsonObject) -> RolloutFailed | None:
    """Return the failure that our own export recorded in a row."""
    failure = _convert_or(read_own_record(row).get("failure"), Failure, None)
    if failure is None or failure.kind not in FAILURE_KINDS:
        return None
    return RolloutFailed(failure.kind, failure.where, failure.message)


def _convert_or(value: JSON, kind: type[T], default: D) -> T | D:
    """Return a value as the given type, or the default if it is missing or something else."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return default


def _read_timestamp(value: JSON) -> float:
    """Return a time stamp, or 0 if it is not a finite number."""
    try:
        seconds = float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


async def fill_book(book: Book, reader: CollectionReader) -> None:
    """Write all rollouts that were read, as a worker does; rollouts without a result stay pending."""
    round_ = book.open_round(Settings(retry=[]))
    progress = ProgressCounter(book, round_.settings)

    def keep_known(claim: Claim) -> None:
        progress.add_claim(claim)
        claim.todo = [todo for todo in claim.todo if reader.has(book.tasks.read(todo[0]).id, todo[1])]
        claim.keys_left = len(claim.todo)

    jobs = BookJobSource(book, round_, on_mark=progress.record, on_claim=keep_known)
    worker = Worker(jobs, reader, FixedLimit(CONCURRENCY), round_.number, dict.fromkeys(FAILURE_KINDS, 1))
    await jobs.run_worker(worker)
