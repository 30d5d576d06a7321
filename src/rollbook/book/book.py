"""The run directory: open an existing one, or create a new one."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from rollbook.book.durable_files import DISK_ERRORS, advise_on_disk, lock_run, sync_folder, write_atomically, write_new
from rollbook.book.media import MEDIA_FOLDER, MediaStore
from rollbook.book.seals import measure_extent
from rollbook.book.tasks import TaskFile, read_rows, store_task_media, write_tasks
from rollbook.core import (
    JSON_ERRORS,
    SCHEMA_VERSION,
    Chunks,
    Manifest,
    Part,
    Plan,
    Round,
    Settings,
    Task,
    decode_record,
    describe_unknown_schema,
    encode_record,
    find_unknown_rules,
    is_record_intact,
    make_part,
)
from rollbook.errors import BookError, BookUnwritable, UsageError

T = TypeVar("T")
FOLDERS = ("rounds", "workers", "leases", "journals", "done")


class BookDraft:
    """A run directory under construction: built under a temporary name, then renamed, so it is complete or absent."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        refuse_occupied(self.path)
        self.folder = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        self._task_ids: set[str] = set()
        self._new_parents: list[Path] = []

    def __enter__(self) -> BookDraft:
        try:
            self._new_parents = [parent for parent in self.folder.parents if not parent.exists()]
            self.folder.mkdir(parents=True)
            self._tasks = open(self.folder / "tasks.jsonl", "wb")
        except OSError as error:
            self._delete()
            raise unwritable_error(self.path, error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the draft is deleted in any case
            self._tasks.close()
        if self.folder.exists():
            self._delete()
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise unwritable_error(self.path, error) from None

    def _delete(self) -> None:
        """Delete the draft, and the folders above it that were made for it alone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in self._new_parents:
            with suppress(OSError):  # another run is in it by now
                parent.rmdir()

    def add_tasks(self, tasks: Iterable[Task], env: str, roots: Sequence[Path] = ()) -> int:
        """Append an environment's tasks; return how many there were. Their images are read from below `roots`."""
        return write_tasks(self._tasks, tasks, env, self._task_ids, MediaStore(self.folder), roots)

    def copy_tasks(self, book: Book) -> None:
        """Copy another book's tasks unchanged."""
        MediaStore(self.folder).copy_from(book.path)
        with open(book.path / "tasks.jsonl", "rb") as file:
            shutil.copyfileobj(file, self._tasks)

    def read_rows(self) -> dict[str, int]:
        """Return task id to row."""
        self._tasks.flush()
        return read_rows(self.folder / "tasks.jsonl", len(self._task_ids))

    def finish(self, manifest: Manifest, parts: list[Part], first_settings: Settings | None = None) -> Book:
        """Write run.json and plan.json, open the first round if its settings are given, and rename into place."""
        self._tasks.flush()
        os.fsync(self._tasks.fileno())
        for name in FOLDERS:
            (self.folder / name).mkdir()
        size = (self.folder / "tasks.jsonl").stat().st_size
        frozen = msgspec.structs.replace(manifest, tasks=measure_extent(self.folder / "tasks.jsonl", size))
        write_atomically(self.folder / "plan.json", encode_record(Plan(SCHEMA_VERSION, parts)))
        write_atomically(self.folder / "run.json", encode_record(frozen))
        if first_settings is not None:
            write_atomically(
                self.folder / "rounds" / "0001.json",
                encode_record(Round(SCHEMA_VERSION, 1, time.time(), first_settings, hash_manifest(self.folder))),
            )
        try:
            os.rename(self.folder, self.path)
        except OSError:
            refuse_occupied(self.path)
            raise
        sync_folder(self.path.parent)
        return Book(self.path)


def describe_round_damage(path: Path, found: Round) -> str:
    """Return what is wrong with a round: its number and its rules decide which failures count as final."""
    if problem := describe_unknown_schema(found.schema):
        return problem
    if found.number != int(path.stem):
        return f"it is round {found.number} by its content"
    unknown = find_unknown_rules(found.settings.retry)
    return f"{unknown[0]!r} is not a rule of --retry" if unknown else ""


def unwritable_error(path: Path, error: OSError) -> UsageError:
    """Return the error for a place where no run directory can be created."""
    ways = [way for way in (advise_on_disk(error), "choose another --out") if way]
    return UsageError(f"cannot write to {path.parent}: {error.strerror}; {', or '.join(ways)}")


def edited_error(path: Path) -> BookError:
    """Return the error for a file that must not change after the run began."""
    return BookError(f"{path} was edited since the run began: restore it from a copy of the run")


def hash_manifest(run: Path) -> str:
    """Return the hash by which an edited run.json is recognised."""
    return hashlib.sha256((run / "run.json").read_bytes()).hexdigest()


def is_manifest_edited(run: Path, rounds: Iterable[Round]) -> bool:
    """Return whether run.json has a wrong checksum, or is not as the first of these rounds found it."""
    began = next((r.meaning for r in rounds if r.meaning), "")
    if began and began != hash_manifest(run):
        return True
    return not is_record_intact((run / "run.json").read_bytes())


def are_tasks_edited(run: Path, manifest: Manifest) -> bool:
    """Return whether the planned rows of tasks.jsonl have another hash than run.json records."""
    held = manifest.tasks
    return held is not None and measure_extent(run / "tasks.jsonl", held.bytes) != held


def refuse_url(path: str | Path, option: str = "") -> None:
    """Refuse a URL where a path is needed: as a path it would silently name a local folder called `s3:`.

    One slash is enough to be taken for a URL, because Path removes the other.
    """
    match = _URL_START(str(path))
    if match:
        url = f"{match[1]}://{match[2]}"
        way = "leave out file://" if match[1] == "file" else "give a local path, and copy the files yourself"
        raise UsageError(f"{option} {url}: Rollbook reads and writes local files only; {way}".strip())


_URL_START = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL).fullmatch
"""A scheme has two letters or more; a single one is a drive of Windows."""


RUN_FILES = frozenset(("run.json", "plan.json", "tasks.jsonl", "source", "logs", MEDIA_FOLDER, *FOLDERS))


def remove_unused_run(path: Path) -> None:
    """Remove a run directory in which no rollout was recorded, so that a start can be tried again with the same path.

    It stays if anything else is in it.
    """
    used = any(journal.stat().st_size for journal in (path / "journals").iterdir())
    if not used and {each.name for each in path.iterdir()} <= RUN_FILES:
        shutil.rmtree(path, ignore_errors=True)


def refuse_occupied(path: Path) -> None:
    """Refuse to overwrite a run directory; the error lists the alternatives."""
    refuse_url(path, "--out")
    try:
        is_file = path.is_file()
        occupied = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    except OSError as error:
        raise UsageError(f"--out {str(path)[:80]}: {error.strerror}; choose another") from None
    if is_file:
        raise UsageError(f"--out {path}: this is a file, and a run is a folder; choose another name")
    if occupied:
        way = f"continue it with `rollbook resume {path}`, " if (path / "run.json").exists() else ""
        raise UsageError(f"{path} is not empty: {way}choose another --out, or delete it")


def missing_run_error(path: Path) -> UsageError:
    """Return the error for a path that is not a run directory; it says what the path is."""
    refuse_url(path)
    reason = "it has no run.json"
    if path.is_file():
        reason = "it is a file"
    elif not path.exists():
        reason = "it does not exist"
    elif inside := sorted(path.glob("*/run.json")):
        reason = f"it is a folder of runs; name one of them, such as {inside[0].parent}"
    return UsageError(f"{path} is not a run directory: {reason}")


class Book:
    """An existing run directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / "run.json").is_file():
            raise missing_run_error(self.path)
        self.media = MediaStore(self.path)
        self.manifest = self._read_json("run.json", Manifest)
        if problem := describe_unknown_schema(self.manifest.schema):
            raise BookError(f"{self.path / 'run.json'}: {problem}")
        if not self.manifest.environments:
            raise BookError(f"{self.path / 'run.json'}: no environment; restore it from a copy of the run")
        self.tasks = self._open_tasks()
        self.load_plan()
        self._check_task_count()
        for name in FOLDERS:
            if not (self.path / name).exists():  # many ways of copying leave empty folders out
                (self.path / name).mkdir(exist_ok=True)

    def last_settings(self) -> Settings:
        """Return the settings of the last round; the usual ones before the first."""
        rounds = self.rounds()
        return rounds[-1].settings if rounds else Settings()

    def _open_tasks(self) -> TaskFile:
        path = self.path / "tasks.jsonl"
        if not path.is_file():
            raise BookError(f"{path} is missing: restore it from a copy of the run")
        return TaskFile(path)

    def _check_task_count(self) -> None:
        """Check that every planned task exists; rows may have been appended since they were counted."""
        asked = max((part.tasks[1] for part in self.plan.parts), default=0)
        if asked > len(self.tasks):
            self.tasks.refresh()
        if asked > len(self.tasks):
            path = self.path / "tasks.jsonl"
            raise BookError(f"{path} has {len(self.tasks)} of {asked} tasks: restore it from a copy of the run")

    def load_plan(self) -> None:
        """Read the plan; call again after it may have been extended."""
        plan = self._read_json("plan.json", Plan)
        if problem := plan.describe_damage():
            raise BookError(f"{self.path / 'plan.json'}: {problem}; restore it from a copy of the run")
        self.plan, self.chunks = plan, Chunks(plan)

    def _read_json(self, name: str, struct_type: type[T]) -> T:
        try:
            data = (self.path / name).read_bytes()
            if name == "run.json":  # an edited one is refused where that would mix two meanings, and shown elsewhere
                return msgspec.json.decode(data, type=struct_type)
            return decode_record(data, msgspec.json.Decoder(struct_type))
        except FileNotFoundError:
            raise BookError(f"{self.path / name} is missing: restore it from a copy of the run") from None
        except JSON_ERRORS as error:
            raise BookError(f"{self.path / name}: {error}; restore it from a copy of the run") from None

    def rounds(self) -> list[Round]:
        """Return every round (start) of this run, oldest first."""
        paths = sorted((self.path / "rounds").glob("[0-9]*.json"))
        return [self._read_round(path) for path in paths]

    def _read_round(self, path: Path) -> Round:
        found = self._read_json(f"rounds/{path.name}", Round)
        if problem := describe_round_damage(path, found):
            raise BookError(f"{path}: {problem}; restore it from a copy of the run")
        return found

    def open_round(self, settings: Settings) -> Round:
        """Record a new round with its settings."""
        number = len(self.rounds()) + 1
        while True:
            opened = Round(self.manifest.schema, number, time.time(), settings, hash_manifest(self.path))
            try:
                if write_new(self.path / "rounds" / f"{number:04}.json", encode_record(opened)):
                    return opened
            except OSError as error:
                raise BookUnwritable(f"{self.path} cannot be written: {error.strerror}") from None
            number += 1

    def check_meaning(self) -> None:
        """Refuse to continue when run.json was edited since the run began: scores would have two meanings."""
        if self.is_manifest_edited():
            raise edited_error(self.path / "run.json")
        self.check_tasks()

    def is_manifest_edited(self) -> bool:
        """Return whether run.json is not as the first round found it."""
        return is_manifest_edited(self.path, self.rounds())

    def check_tasks(self) -> None:
        """Refuse tasks that were edited after planning: earlier scores belong to the old tasks."""
        if are_tasks_edited(self.path, self.manifest):  # or it is the hash in run.json that is damaged
            raise edited_error(self.path / ("run.json" if self.is_manifest_edited() else "tasks.jsonl"))

    def add_parts(self, parts: list[Part]) -> None:
        """Add keys to the plan; existing parts stay unchanged."""
        grown = Plan(self.manifest.schema, [*self.plan.parts, *parts])
        write_atomically(self.path / "plan.json", encode_record(grown))
        self.load_plan()

    def add_tasks(self, tasks: Iterable[Task], env: str) -> tuple[int, int]:
        """Append tasks (a Collector's stream); return their range of rows."""
        first = len(self.tasks)
        with open(self.path / "tasks.jsonl", "ab") as file:
            write_tasks(file, tasks, env, set(self.tasks.rows), self.media)
            file.flush()
            os.fsync(file.fileno())
        self.tasks.refresh()
        return first, len(self.tasks)

    def request_samples(self, tasks: list[Task], env: str, samples: int, roots: Sequence[Path] = ()) -> None:
        """Request `samples` of each task: new tasks are appended; a known task gets samples it has not had."""
        for task in tasks:
            store_task_media(task, self.media, roots)
        with lock_run(self.path):  # against `extend`, and against an abandoned thread of this process
            self.load_plan()
            self._request_samples(tasks, env, samples)

    def _request_samples(self, tasks: list[Task], env: str, samples: int) -> None:
        fresh: dict[str, Task] = {}
        again: list[str] = []
        for task in tasks:
            known = fresh.get(task.id) or self._find_task(task.id)
            if known is None:
                fresh[task.id] = task
            else:
                check_same_task(known, task)
                again.append(task.id)
        parts = [make_part(self.add_tasks(fresh.values(), env), (0, samples), 1)] if fresh else []
        for task_id in again:
            row = self.tasks.rows[task_id]
            held = max(p.samples[1] for p in [*self.plan.parts, *parts] if p.tasks[0] <= row < p.tasks[1])
            parts.append(make_part((row, row + 1), (held, held + samples), 1))
        self.add_parts(parts)

    def _find_task(self, task_id: str) -> Task | None:
        row = self.tasks.rows.get(task_id)
        return None if row is None else self.tasks.read(row)

    def extend(self, samples: int, workers: int) -> int:
        """Add the samples below `samples` that are not planned yet; return how many keys that adds."""
        with lock_run(self.path):
            self.load_plan()
            missing = find_missing_samples(self.plan.parts, samples)
            parts = [make_part(tasks, gap, workers, ordered=True) for tasks, gap in missing]
            if parts:
                self.add_parts(parts)
        return sum(p.keys for p in parts)


def check_same_task(known: Task, task: Task) -> None:
    """Refuse another task under an id that is in use: its scores would be attributed to the wrong task."""
    if (known.messages, known.answer, known.fields) != (task.messages, task.answer, task.fields):
        raise UsageError(f"task {task.id!r} is already in the run with different content: give it another id")


def find_missing_samples(parts: list[Part], samples: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Return ranges of tasks, each with a range of samples below `samples` that no part requests for them.

    >>> from rollbook.core.manifest import Part
    >>> list(find_missing_samples([Part((0, 2), (0, 2), [4]), Part((1, 2), (3, 4), [1])], 5))
    [((0, 1), (2, 5)), ((1, 2), (2, 3)), ((1, 2), (4, 5))]
    """
    edges = sorted({edge for p in parts for edge in p.tasks})
    for first, last in pairwise(edges):
        asked = sorted(p.samples for p in parts if p.tasks[0] <= first and last <= p.tasks[1])
        position = 0
        for start, stop in [*asked, (samples, samples)]:
            if asked and position < min(start, samples):
                yield (first, last), (position, min(start, samples))
            position = max(position, stop)
