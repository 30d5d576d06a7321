"""Which lines of a book's journals count (each key once, the others dropped and counted), and reading them back.

Of a key the lowest epoch counts, then the lowest attempt; what a seal covers does not change. A journal file is read by
complete lines: a torn end is dropped, a damaged line is skipped and recorded (json_lines.py). `rollouts` yields
complete rollouts, on request with their exact tokens; `LineIndex` finds the line of one key without holding lines in
memory.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from rollbook.book.book import Book
from rollbook.book.json_lines import NO_LIMIT, LineReader, count_lines, malformed_line_error
from rollbook.book.leases import Leases
from rollbook.book.seals import SealedExtents, Seals
from rollbook.core import (
    JSON_ERRORS,
    FailedLine,
    Failure,
    Rollout,
    Round,
    ScoredLine,
    Seal,
    Timing,
    Turn,
    TurnLine,
    reopens,
)
from rollbook.errors import BookError
from rollbook.tokens import decode_tokens

T = TypeVar("T")


class ScoredLineHeader(msgspec.Struct, frozen=True):
    """The fields of a scored line that counting needs."""

    task: str
    sample: int
    attempt: int


class FailedLineHeader(msgspec.Struct, frozen=True):
    """The fields of a failed line that counting needs."""

    task: str
    sample: int
    round: int
    attempt: int
    final: bool
    failure: Failure
    timing: Timing = Timing()


class KeyedLine(Protocol):
    """The fields that any struct for scored lines must have."""

    @property
    def task(self) -> str:
        """The task's id."""
        ...

    @property
    def sample(self) -> int:
        """The sample number."""
        ...

    @property
    def attempt(self) -> int:
        """The attempt number."""
        ...


M = TypeVar("M", bound=KeyedLine)
NO_EPOCH = 1 << 30


def iterate_parts(book: Book) -> Iterator[tuple[range, range, int, list[int]]]:
    """Yield for every part of the plan its rows, its samples, its first chunk number and the end of each chunk."""
    first = 0
    for part in book.plan.parts:
        ends, total = [], 0
        for size in part.chunks:
            total += size
            ends.append(total)
        yield range(*part.tasks), range(*part.samples), first, ends
        first += len(part.chunks)


class KeyMap:
    """Maps a key to its row, its place among all planned keys, and its chunk."""

    def __init__(self, book: Book) -> None:
        self._rows = book.tasks.rows
        self._parts: list[tuple[range, range, int, list[int], int]] = []
        self.keys = 0
        for rows, samples, first, ends in iterate_parts(book):
            self._parts.append((rows, samples, first, ends, self.keys))
            self.keys += len(rows) * len(samples)

    def find(self, task: str, sample: int) -> tuple[int, int, int] | None:
        """Return (row, place, chunk) of a key; None if it is not planned."""
        row = self._rows.get(task)
        if row is None:
            return None
        for rows, samples, first, ends, base in self._parts:
            if row in rows and sample in samples:
                place = (row - rows.start) * len(samples) + sample - samples.start
                return row, base + place, first + bisect_right(ends, place)
        return None

    def check(self, path: Path, end: int, task: str, sample: int) -> tuple[int, int, int]:
        """Return (row, place, chunk) of the key of a line; raise a BookError about the line if it is not planned."""
        found = self.find(task, sample)
        if found is None:
            raise unplanned_key_error(path, end, task, sample)
        return found


class ChunkRule(NamedTuple):
    """How the lines of one chunk in one journal count: those that end at `limit` or before, ranked by `epoch`.

    A chunk with several owners is `contested`: which of a key's lines counts is known once all journals are read.
    """

    epoch: int
    limit: int
    contested: bool


class LineRules:
    """Which lines of a run directory count, from its leases and seals: the one rule of every reader.

    Of a key the lowest epoch counts, then the lowest attempt, then the line that is read first; what a seal covers
    does not change. `CountedLines` applies this line by line, `rollbook.reports` to the columns of whole journals.
    """

    def __init__(self, run: Path) -> None:
        self._leases = Leases(run)
        self._leases.refresh()
        self.seals = Seals(run).refresh()

    def find(self, chunk: int, journal: Path) -> ChunkRule:
        """Return how a journal's lines of a chunk count."""
        contested = self._leases.epochs.get(chunk, 0) > 1
        owners = self._leases.find_owners(chunk) if contested else {}
        epoch = owners.get(worker_of_journal(journal), NO_EPOCH) if contested else 1
        return ChunkRule(epoch, counted_limit(self.seals.get(chunk), epoch, journal.name), contested)


def counted_limit(seal: Seal | None, epoch: int, journal: str) -> int:
    """Return the offset up to which lines count: all do until the chunk is sealed, then those that the seal covers.

    Lines of owners after the seal count too.
    """
    if seal is None or epoch > seal.epoch:
        return NO_LIMIT
    return seal.files[journal].bytes if journal in seal.files else 0


class ContestedLines(Generic[T]):
    """The lines of contested chunks: of every key the best so far."""

    def __init__(self) -> None:
        self._best: dict[int, tuple[tuple[int, int], T]] = {}

    def add(self, place: int, rank: tuple[int, int], line: T) -> bool:
        """Add a line of the key at `place`, ranked by (epoch, attempt); return whether it is the key's first."""
        best = self._best.get(place)
        if best is None or rank < best[0]:
            self._best[place] = rank, line
        return best is None

    def __iter__(self) -> Iterator[T]:
        return (line for _, line in self._best.values())


class CountedLines(Generic[M]):
    """Streams the scored lines that count, each key once; `dropped` counts the others, `damaged` are unreadable."""

    def __init__(self, book: Book, struct_type: type[M]) -> None:
        self._book, self._reader = book, LineReader(struct_type, book.manifest.schema)
        self.damaged = self._reader.damaged
        self._keys = KeyMap(book)
        self._rules = LineRules(book.path)
        self._seen = bytearray(self._keys.keys // 8 + 1)
        self._contested: ContestedLines[tuple[int, Path, int, M]] = ContestedLines()
        self.dropped = 0

    def __iter__(self) -> Iterator[tuple[int, Path, M]]:
        """Yield (row, journal, line) for every scored key, in no order."""
        return ((row, path, line) for row, path, _, line in self.iterate_with_offsets())

    def iterate_with_offsets(self) -> Iterator[tuple[int, Path, int, M]]:
        """Yield (row, journal, end offset, line) for every scored key, in no order."""
        sealed_extents = SealedExtents(self._book.path, self._rules.seals)
        sealed_extents.check_present(failures=False)
        for path in list_journals(self._book.path, failures=False):
            rules: dict[int, ChunkRule] = {}
            end = 0
            for end, line in self._reader.read(path):
                row = self._check_line(path, rules, end, line)
                if row is not None:
                    yield row, path, end, line
            sealed_extents.check_read(path, end)
        yield from self._contested

    def _check_line(self, path: Path, rules: dict[int, ChunkRule], end: int, line: M) -> int | None:
        """Return the row of a line that counts beyond doubt; contested ones are kept for the end."""
        row, place, chunk = self._keys.check(path, end, line.task, line.sample)
        if (rule := rules.get(chunk)) is None:
            rule = rules[chunk] = self._rules.find(chunk, path)
        if end > rule.limit:
            self.dropped += 1
            return None
        if rule.contested:
            self.dropped += not self._contested.add(place, (rule.epoch, line.attempt), (row, path, end, line))
            self._mark_seen(place)
            return None
        if self._is_seen(place):
            self.dropped += 1
            return None
        self._mark_seen(place)
        return row

    def _is_seen(self, place: int) -> bool:
        return bool(self._seen[place >> 3] >> (place & 7) & 1)

    def _mark_seen(self, place: int) -> None:
        self._seen[place >> 3] |= 1 << (place & 7)

    def iterate_missing(self) -> Iterator[tuple[int, int]]:
        """Yield (row, sample) of every key without a score; call after the lines were iterated."""
        place = 0
        for rows, samples, _, _ in iterate_parts(self._book):
            for row in rows:
                for sample in samples:
                    if not self._is_seen(place):
                        yield row, sample
                    place += 1


def unplanned_key_error(path: Path, end: int, task: str, sample: int) -> BookError:
    """Return the error about an undamaged line, which ends at `end`, of a key that is not in the plan."""
    return BookError(
        f"{path}:{count_lines(path, end)}: task {task!r} sample {sample} is not in the plan: restore plan.json and "
        "tasks.jsonl from a copy of the run, or move this journal away if it belongs to another run"
    )


def list_journals(run: Path, *, failures: bool) -> list[Path]:
    """Return the journals of scored lines, or of failed ones, in a stable order."""
    paths = (p for p in (run / "journals").glob("[!.]*.jsonl") if p.name.endswith(".failures.jsonl") == failures)
    return sorted(paths)


def worker_of_journal(path: Path) -> str:
    """Return the id of the worker that wrote a journal file."""
    return path.name.removesuffix(".jsonl").removesuffix(".failures").rpartition(".")[0]


class FinalFailures:
    """Streams the final failures that no later round has reopened; a scored line of the same key overrides them."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._rounds = book.rounds()
        self._sealed_extents = SealedExtents(book.path, Seals(book.path).refresh())
        self._reader = LineReader(FailedLineHeader, book.manifest.schema)
        self.damaged = self._reader.damaged

    @cached_property
    def _keys(self) -> KeyMap:
        """Made with the first line: most runs have no failures."""
        return KeyMap(self._book)

    def __iter__(self) -> Iterator[FailedLineHeader]:
        return (line for _, _, line in self.iterate_with_offsets())

    def iterate_with_offsets(self) -> Iterator[tuple[Path, int, FailedLineHeader]]:
        """Yield (journal, end offset, line)."""
        self._sealed_extents.check_present(failures=True)
        for path in list_journals(self._book.path, failures=True):
            end = 0
            for end, line in self._reader.read(path):
                self._keys.check(path, end, line.task, line.sample)
                if is_still_final(line, self._rounds):
                    yield path, end, line
            self._sealed_extents.check_read(path, end)


def is_still_final(line: FailedLineHeader | FailedLine, rounds: Iterable[Round]) -> bool:
    """Return whether a failure is final and no later round has reopened it."""
    return line.final and not any(
        r.number > line.round and reopens(r.settings.retry, line.failure.kind) for r in rounds
    )


def rollouts(book: Book, *, tokens: bool = False) -> Iterator[Rollout]:
    """Yield every scored rollout that counts, in no order; with `tokens` turns carry their ids and logprobs."""
    for row, path, line in CountedLines(book, ScoredLine):
        rollout = line.to_rollout(book.tasks.read(row))
        if tokens:
            rollout.turns = read_turns(path, line.turns)
        yield rollout


def read_turns(journal: Path, lines: list[TurnLine]) -> list[Turn]:
    """Return the turns of a line with their ids from the segment's sidecar."""
    previous_ids: list[int] = []
    turns = []
    for line in lines:
        turn = line.to_turn()
        if line.tokens is not None:
            record = _read_token_record(sidecar_path(journal), line.tokens.at, line.tokens.size)
            prompt_ids, ids, logprobs = decode_tokens(record, previous_ids)
            turn = msgspec.structs.replace(turn, prompt_ids=prompt_ids, ids=ids, logprobs=logprobs)
            previous_ids = prompt_ids + ids
        turns.append(turn)
    return turns


def sidecar_path(journal: Path) -> Path:
    """Return the path of the token sidecar of a journal."""
    stem = journal.name.removesuffix(".jsonl").removesuffix(".failures")
    return journal.with_name(f"{stem}.tokens")


def _read_token_record(sidecar: Path, at: int, size: int) -> bytes:
    try:
        with open(sidecar, "rb") as file:
            file.seek(at)
            record = file.read(size)
    except FileNotFoundError:
        raise BookError(f"{sidecar} is missing: restore it from a copy of the run") from None
    if len(record) != size:
        raise BookError(f"{sidecar} ends before byte {at + size}: restore it from a copy of the run")
    return record


NOT_STORED = -1
TAIL_BLOCK_BYTES = 1 << 16
_scored_decoder = msgspec.json.Decoder(ScoredLine)
_failed_decoder = msgspec.json.Decoder(FailedLine)


class LineIndex:
    """Finds every key's rollout by journal and offset, twelve bytes a key.

    Every line is decoded once on construction, so that a malformed one is refused before any other is used.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._keys = KeyMap(book)
        self._files: list[Path] = []
        self._file = array("i", [NOT_STORED]) * self._keys.keys
        self._end = array("q", [0]) * self._keys.keys
        for path, end, failed in FinalFailures(book).iterate_with_offsets():
            _read_line(path, end)
            self._add(failed.task, failed.sample, path, end)
        for _, path, end, scored in CountedLines(book, ScoredLine).iterate_with_offsets():
            self._add(scored.task, scored.sample, path, end)

    def _add(self, task: str, sample: int, path: Path, end: int) -> None:
        if not self._files or self._files[-1] != path:
            self._files.append(path)
        _, place, _ = self._keys.check(path, end, task, sample)
        self._file[place], self._end[place] = len(self._files) - 1, end

    @property
    def missing(self) -> int:
        """The number of keys with neither a score nor a final failure."""
        return self._file.count(NOT_STORED)

    def has(self, task: str, sample: int) -> bool:
        """Return whether a key has a score or a final failure."""
        found = self._keys.find(task, sample)
        return found is not None and self._file[found[1]] != NOT_STORED

    def read(self, task: str, sample: int) -> Rollout | None:
        """Return the stored rollout of a key with its tokens; None if it has neither a score nor a final failure."""
        found = self._keys.find(task, sample)
        if found is None or self._file[found[1]] == NOT_STORED:
            return None
        row, place, _ = found
        path = self._files[self._file[place]]
        line = _read_line(path, self._end[place])
        rollout = line.to_rollout(self._book.tasks.read(row))
        rollout.turns = read_turns(path, line.turns)
        return rollout


def _read_line(path: Path, end: int) -> ScoredLine | FailedLine:
    """Decode the line that ends at an offset; raise a BookError with its number if that fails."""
    raw = read_line_before(path, end)
    try:
        return _failed_decoder.decode(raw) if path.name.endswith(".failures.jsonl") else _scored_decoder.decode(raw)
    except JSON_ERRORS as error:
        raise malformed_line_error(path, count_lines(path, end), error) from None


def read_line_before(path: Path, end: int) -> bytes:
    """Return the bytes of the line that ends just before an offset."""
    handle = os.open(path, os.O_RDONLY)
    try:
        size = TAIL_BLOCK_BYTES
        while True:
            start = max(0, end - size)
            data = os.pread(handle, end - 1 - start, start)
            at = data.rfind(b"\n")
            if at >= 0 or start == 0:
                return data[at + 1 :]
            size *= 4
    finally:
        os.close(handle)
