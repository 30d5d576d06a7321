"""Checking a run directory: every file against its type, its seals and its checksums, naming all damage at once.

Nothing is written. What is torn (an unterminated end of a journal) is not damage: its rollouts are run again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from rollbook.book.book import Book, are_tasks_edited, describe_round_damage, is_manifest_edited
from rollbook.book.counted_lines import KeyMap, is_still_final, list_journals, sidecar_path, worker_of_journal
from rollbook.book.heartbeats import GONE_SUFFIX, WorkerGone, list_joined_and_gone
from rollbook.book.json_lines import LineChecker, read_whole_lines
from rollbook.book.leases import Leases, lease_path
from rollbook.book.media import MEDIA_FOLDER, find_media_damage, list_media
from rollbook.book.seals import Seals, list_seals, measure_extents, read_seal
from rollbook.book.source_copies import is_source_edited, list_source_files
from rollbook.core import (
    JSON_ERRORS,
    REFERENCE_PREFIX,
    SCHEMA_VERSION,
    Extent,
    FailedLine,
    Lease,
    Manifest,
    Message,
    Plan,
    Presence,
    Round,
    ScoredLine,
    Seal,
    TurnLine,
    decode_record,
    is_media_name,
    list_sources,
    read_reference,
)
from rollbook.errors import BookError, TokenError
from rollbook.tokens import decode_tokens

T = TypeVar("T")
MEDIA_MARK = f'"{REFERENCE_PREFIX}'.encode()
"""What every line has that refers to an image or a sound."""
EDITED = "was edited since the run began"
PLAN_FILES = ("run.json", "plan.json", "tasks.jsonl")
_scored_decoder = msgspec.json.Decoder(ScoredLine)
_failed_decoder = msgspec.json.Decoder(FailedLine)


class _MessagesOnly(msgspec.Struct):
    messages: list[Message]


_messages_decoder = msgspec.json.Decoder(_MessagesOnly)


class Damage(msgspec.Struct, frozen=True):
    """What is wrong with a file, and in which line of a journal; 0: not a matter of one line."""

    path: str
    problem: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}" if self.line else f"{self.path}: {self.problem}"


class RunVerification(msgspec.Struct):
    """The damage of a run directory, and how much of it was read."""

    path: str
    files: int = 0
    lines: int = 0
    torn: int = 0
    damage: list[Damage] = []


def verify_run(run: str | Path) -> RunVerification:
    """Read every file of a run directory and return all damage."""
    found = RunVerification(str(run))
    try:
        book = Book(run)
    except BookError as error:
        found.damage += _check_unopened(Path(run), error, found)
        return found
    checker = _BookChecker(book, found)
    for damage in checker.check():
        found.damage.append(damage)
    return found


def _check_unopened(run: Path, error: BookError, found: RunVerification) -> Iterator[Damage]:
    """Yield why a run cannot be opened, and the damage that can be found without its plan.

    Every file has a checksum, so only what contradicts the plan is left out.
    """
    first = _make_damage(error, *(run / name for name in PLAN_FILES))
    yield first
    yield from (damage for damage in _check_frozen_files(run, found) if damage.path != first.path)
    manifest = _read_value(run / "run.json", Manifest)
    is_known = manifest is not None and 1 <= manifest.schema <= SCHEMA_VERSION
    yield from _FileChecker(run, manifest.schema if manifest and is_known else 1, found).check()


def _check_frozen_files(run: Path, found: RunVerification) -> Iterator[Damage]:
    manifest = _read_value(run / "run.json", Manifest)
    yield from _check_values(found, [run / "plan.json"], Plan, Plan.describe_damage)
    found.files += 1
    if manifest is None or _is_manifest_edited(run):
        yield Damage(str(run / "run.json"), EDITED)
        return
    if (run / "tasks.jsonl").exists():
        found.files += 1
        if are_tasks_edited(run, manifest):
            yield Damage(str(run / "tasks.jsonl"), EDITED)
    yield from _check_sources(run, manifest, found)


def _check_sources(run: Path, manifest: Manifest, found: RunVerification) -> Iterator[Damage]:
    """Check that the copies of the user's source have the digests of a manifest that is not damaged."""
    for spec in manifest.environments.values():
        if spec.snapshot is not None:
            found.files += len(list_source_files(run / spec.snapshot))
            if is_source_edited(run, spec):
                yield Damage(str(run / spec.snapshot), EDITED)


def _read_value(path: Path, struct_type: type[T]) -> T | None:
    with suppress(FileNotFoundError, *JSON_ERRORS):
        return msgspec.json.decode(path.read_bytes(), type=struct_type)
    return None


def _is_manifest_edited(run: Path) -> bool:
    """Return whether run.json is damaged, as far as the rounds that can be read tell."""
    rounds = (_read_value(path, Round) for path in _list_rounds(run) if not [*_check_rounds([path])])
    return is_manifest_edited(run, filter(None, rounds))


def _list_rounds(run: Path) -> list[Path]:
    return sorted((run / "rounds").glob("[0-9]*.json"))


def _check_rounds(paths: list[Path], found: RunVerification | None = None) -> Iterator[Damage]:
    for path in paths:
        yield from _check_values(found or RunVerification(""), [path], Round, partial(describe_round_damage, path))


def _check_values(
    found: RunVerification, paths: list[Path], struct_type: type[T], describe: Callable[[T], str] = lambda _: ""
) -> Iterator[Damage]:
    """Check that files of one JSON value can be read; `describe` returns what is wrong with the value of one."""
    decoder = msgspec.json.Decoder(struct_type)
    for path in paths:
        found.files += 1
        try:
            problem = describe(decode_record(path.read_bytes(), decoder))
        except FileNotFoundError:
            problem = "is missing"
        except JSON_ERRORS as error:
            problem = str(error)
        if problem:
            yield Damage(str(path), problem)


def _make_damage(error: BookError, *paths: Path) -> Damage:
    """Return an error about one of these files, which its message names first."""
    text = str(error)
    path = next((str(path) for path in paths if text.startswith(str(path))), str(paths[0]))
    return Damage(path, text.removeprefix(path).lstrip(": "))


class _SealedCounts:
    """Counts the lines that a seal covers: the scored keys of its chunk, and the failed ones by kind.

    What the seal of an earlier round left out of the journals of its workers stays left out.
    """

    def __init__(self, path: Path, seal: Seal) -> None:
        self.path, self.seal = path, seal
        self.earlier: Seal | None = None
        self._scored = 0  # a bit for each key of the chunk
        self._failed: dict[int, str] = {}

    def covers(self, journal: Path, end: int) -> bool:
        name = journal.name
        if end > _sealed_bytes(self.seal, name) or end in self.seal.damaged.get(name, ()):
            return False
        earlier = self.earlier
        if earlier is None or worker_of_journal(journal) not in {
            worker_of_journal(Path(each)) for each in earlier.files
        }:
            return True
        return end <= _sealed_bytes(earlier, name)

    def add(self, key: int, line: ScoredLine | FailedLine, rounds: list[Round]) -> None:
        if isinstance(line, ScoredLine):
            self._scored |= 1 << key
        elif is_still_final(line, (each for each in rounds if each.number <= self.seal.round)):
            self._failed[key] = line.failure.kind

    def describe_difference(self) -> str:
        """Return how the seal differs from its lines; empty if it does not."""
        failed = Counter(kind for key, kind in self._failed.items() if not self._scored >> key & 1)
        if (self.seal.scored, self.seal.failed) == (self._scored.bit_count(), failed):
            return ""
        says, has = (
            _describe_counts(*each)
            for each in ((self.seal.scored, self.seal.failed), (self._scored.bit_count(), failed))
        )
        return f"it records {says}, but the lines that it covers are {has}"


def _sealed_bytes(seal: Seal, name: str) -> int:
    return seal.files[name].bytes if name in seal.files else 0


def _describe_counts(scored: int, failed: dict[str, int]) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(failed.items()))
    return f"{scored} scored and {sum(failed.values())} failed" + (f" ({kinds})" if kinds else "")


class _FileChecker:
    """Checks the files of a run directory one by one, without its plan; each method yields the damage it finds."""

    def __init__(self, run: Path, schema: int, found: RunVerification) -> None:
        self._run, self._schema, self._found = run, schema, found
        self._leases = Leases(run)
        self._changed: set[tuple[str, Extent]] = set()

    def check(self) -> Iterator[Damage]:
        yield from self._check_media()
        yield from self._check_records()
        yield from self._check_seals()
        for failures in (False, True):
            for path in list_journals(self._run, failures=failures):
                yield from self._check_journal(path)

    def _check_media(self) -> Iterator[Damage]:
        """Check that every image and sound is what its name says."""
        for path in list_media(self._run):
            self._found.files += 1
            if problem := find_media_damage(path):
                yield Damage(str(path), problem)

    def _find_missing_media(self, raw: bytes) -> str:
        """Return which stored image or sound a line refers to although it does not exist."""
        try:
            messages = _messages_decoder.decode(raw).messages
        except JSON_ERRORS:
            return ""  # what is wrong with the line is found elsewhere
        names = filter(None, map(read_reference, list_sources(messages)))
        missing = [name for name in names if not (is_media_name(name) and (self._run / MEDIA_FOLDER / name).exists())]
        return f"it shows {MEDIA_FOLDER}/{missing[0][:80]}, which is missing" if missing else ""

    def _check_records(self) -> Iterator[Damage]:
        """Check the small files, each of one JSON value."""
        yield from _check_rounds(_list_rounds(self._run), self._found)
        workers = self._run / "workers"
        yield from _check_values(self._found, sorted(workers.glob("[!.]*.json")), Presence)
        yield from _check_values(self._found, sorted(workers.glob(f"[!.]*{GONE_SUFFIX}")), WorkerGone)
        yield from self._check_leases()

    def _check_leases(self) -> Iterator[Damage]:
        rounds = {path.stem for path in _list_rounds(self._run)}

        def describe(lease: Lease) -> str:
            return "" if f"{lease.round:04}" in rounds else f"its round {lease.round} does not exist"

        claimed = self._leases.refresh() if (self._run / "leases").is_dir() else {}
        for chunk, last in sorted(claimed.items()):
            paths = [lease_path(self._run, chunk, epoch) for epoch in range(1, last + 1)]
            yield from _check_values(self._found, paths, Lease, describe)

    def _check_seals(self) -> Iterator[Damage]:
        """Check that every seal can be read, and that the files have the bytes that were sealed, sidecars included."""
        sealed: dict[str, dict[Extent, list[Path]]] = {}
        chunks = Seals(self._run).list_numbers() if (self._run / "done").is_dir() else set()
        for path in [path for chunk in sorted(chunks) for path in list_seals(self._run, chunk)]:
            self._found.files += 1
            try:
                seal = read_seal(path)
            except FileNotFoundError:
                yield Damage(str(path), "is missing")
            except BookError as error:
                yield _make_damage(error, path)
            else:
                yield from self._check_seal(path, seal)
                for name, extent in seal.files.items():
                    sealed.setdefault(name, {}).setdefault(extent, []).append(path)
        for name, extents in sorted(sealed.items()):
            yield from self._check_extents(self._run / "journals" / name, extents)

    def _check_seal(self, path: Path, seal: Seal) -> Iterator[Damage]:
        """Check what a seal says of its chunk, which is in the plan."""
        yield from ()

    def _check_extents(self, path: Path, sealed: dict[Extent, list[Path]]) -> Iterator[Damage]:
        if not path.exists():
            self._changed.update((path.name, extent) for extent in sealed)
            yield Damage(str(path), f"is missing, but sealed by {_list_names(chain.from_iterable(sealed.values()))}")
            return
        self._found.files += path.suffix == ".tokens"  # the others are counted when their lines are read
        same = set(measure_extents(path, sorted(extent.bytes for extent in sealed)))
        changed = [seal for extent, seals in sealed.items() if extent not in same for seal in seals]
        self._changed.update((path.name, extent) for extent in sealed if extent not in same)
        if changed:
            what_to_do = "restore it, or delete the seals and resume if it was restored after them"
            yield Damage(str(path), f"differs from what was sealed by {_list_names(changed)}; {what_to_do}")

    def _check_journal(self, path: Path) -> Iterator[Damage]:
        """Check every line: its checksum, its fields, its key, and the token ids that it refers to."""
        self._found.files += 1
        checker, read = LineChecker(path, self._schema), 0
        for number, (end, line) in enumerate(read_whole_lines(path), 1):
            read = end
            self._found.lines += 1
            problem = checker.find_damage([line]).get(0) or self._check_line(path, end, line)
            if problem:
                yield Damage(str(path), problem, number)
        self._found.torn += path.stat().st_size > read

    def _check_line(self, path: Path, end: int, raw: bytes) -> str:
        line: FailedLine | ScoredLine
        try:
            failed = path.name.endswith(".failures.jsonl")
            line = _failed_decoder.decode(raw) if failed else _scored_decoder.decode(raw)
        except JSON_ERRORS as error:
            return str(error)
        missing = self._find_missing_media(raw) if MEDIA_MARK in raw else ""
        return self._check_key(path, end, line) or missing or _check_tokens(sidecar_path(path), line.turns)

    def _check_key(self, path: Path, end: int, line: ScoredLine | FailedLine) -> str:
        """Return what is wrong with the key of a line, which is in the plan."""
        return ""


class _BookChecker(_FileChecker):
    """Checks one book: its files, and that they agree with its plan."""

    def __init__(self, book: Book, found: RunVerification) -> None:
        super().__init__(book.path, book.manifest.schema, found)
        self._book = book
        self._keys: KeyMap | None = None
        self._rounds: list[Round] | None = None
        self._first_keys = [0, *accumulate(size for part in book.plan.parts for size in part.chunks)]
        self._counts: dict[int, list[_SealedCounts]] = {}
        self._owners: dict[int, dict[str, int]] = {}
        self._foreign: dict[int, str] = {}

    def check(self) -> Iterator[Damage]:
        self._found.files += 2  # run.json and plan.json, which `Book` has read
        is_edited = _is_manifest_edited(self._run)
        if is_edited:
            yield Damage(str(self._run / "run.json"), EDITED)
        with suppress(BookError):  # a damaged round is reported by itself
            self._rounds = self._book.rounds()
        yield from self._check_tasks()
        if not is_edited:
            yield from _check_sources(self._run, self._book.manifest, self._found)
        yield from super().check()
        yield from self._check_owners()
        yield from self._compare_counts()

    def _check_tasks(self) -> Iterator[Damage]:
        self._found.files += 1
        if are_tasks_edited(self._run, self._book.manifest):
            if not _is_manifest_edited(self._run):  # otherwise it may be the hash in run.json that is damaged
                yield Damage(str(self._run / "tasks.jsonl"), EDITED)
            return
        try:
            self._keys = KeyMap(self._book)
        except BookError as error:
            yield _make_damage(error, self._run / "tasks.jsonl")

    def _check_media(self) -> Iterator[Damage]:
        """Check also that the images and sounds of the tasks exist."""
        yield from super()._check_media()
        path = self._run / "tasks.jsonl"
        for number, raw in enumerate(map(self._book.tasks.read_raw, range(len(self._book.tasks))), 1):
            if MEDIA_MARK in raw and (problem := self._find_missing_media(raw)):
                yield Damage(str(path), problem, number)

    def _check_seals(self) -> Iterator[Damage]:
        yield from super()._check_seals()
        for counts in self._counts.values():
            counts.sort(key=lambda each: each.seal.round)
            for earlier, later in pairwise(counts):
                later.earlier = earlier.seal

    def _check_seal(self, path: Path, seal: Seal) -> Iterator[Damage]:
        chunk = int(path.name.partition(".")[0])
        if chunk >= len(self._book.chunks):
            yield Damage(str(path), f"chunk {chunk} is not in the plan")
        elif seal.scored + sum(seal.failed.values()) != self._book.chunks[chunk].size:
            yield Damage(
                str(path), f"its counts do not add up to the {self._book.chunks[chunk].size} rollouts of the chunk"
            )
        elif not (self._run / "rounds" / f"{seal.round:04}.json").exists():
            yield Damage(str(path), f"its round {seal.round} does not exist")
        elif not 1 <= seal.epoch <= self._leases.epochs.get(chunk, 0):  # it decides which of a key's lines count
            yield Damage(str(path), f"its epoch {seal.epoch} has no lease")
        else:
            self._counts.setdefault(chunk, []).append(_SealedCounts(path, seal))

    def _check_key(self, path: Path, end: int, line: ScoredLine | FailedLine) -> str:
        if self._keys is None:
            return ""
        key = self._keys.find(line.task, line.sample)
        if key is None:
            return f"task {line.task!r} sample {line.sample} is not in the plan"
        _, place, chunk = key
        if not self._may_own(worker := worker_of_journal(path), chunk):
            self._foreign.setdefault(chunk, worker)
        for counts in self._counts.get(chunk, ()):
            if counts.covers(path, end):
                counts.add(place - self._first_keys[chunk], line, self._rounds or [])
        return ""

    def _may_own(self, worker: str, chunk: int) -> bool:
        """Return whether a worker ever owned a chunk; anyone may have if a lease cannot be read, which is named."""
        if chunk not in self._owners:
            try:
                self._owners[chunk] = self._leases.find_owners(chunk)
            except BookError:
                self._owners[chunk] = {}
        return not self._owners[chunk] or worker in self._owners[chunk]

    def _check_owners(self) -> Iterator[Damage]:
        """Name the leases of chunks with lines of a worker that never owned them: which line counts is then unsure.

        Call after reading all lines. The lease of a worker that never joined is the likely one.
        """
        joined, _ = list_joined_and_gone(self._run)
        for chunk, worker in sorted(self._foreign.items()):
            owners = self._owners[chunk]
            name, epoch = next((each for each in owners.items() if each[0] not in joined), [*owners.items()][-1])
            yield Damage(str(lease_path(self._run, chunk, epoch)), f"is of {name}, but {worker} has lines of the chunk")

    def _compare_counts(self) -> Iterator[Damage]:
        """Compare seals with the lines that they cover, if these are what was sealed; call after reading all lines."""
        if self._keys is None or self._rounds is None:
            return
        for counts in (each for chunk in sorted(self._counts) for each in self._counts[chunk]):
            if self._changed.isdisjoint(counts.seal.files.items()) and (problem := counts.describe_difference()):
                yield Damage(str(counts.path), problem)


def _check_tokens(sidecar: Path, turns: list[TurnLine]) -> str:
    """Return what is wrong with the records that the turns of a line refer to."""
    refs = [turn.tokens for turn in turns if turn.tokens is not None]
    if not refs:
        return ""
    try:
        handle = os.open(sidecar, os.O_RDONLY)
    except FileNotFoundError:
        return f"its token ids are lost: {sidecar.name} is missing"
    previous_ids: list[int] = []
    try:
        for ref in refs:
            prompt_ids, ids, _ = decode_tokens(os.pread(handle, ref.size, ref.at), previous_ids)
            previous_ids = prompt_ids + ids
    except TokenError as error:
        return f"its token ids are damaged: {sidecar.name}, byte {ref.at}: {error}"
    finally:
        os.close(handle)
    return ""


def _list_names(paths: Iterable[Path]) -> str:
    return ", ".join(sorted(path.name for path in paths))
