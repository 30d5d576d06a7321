"""What counts in a book: the marks of all journals, each key once, dead ends dropped and counted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from rollbook.book.book import Book
from rollbook.book.lease import Leases
from rollbook.book.seal import Seals
from rollbook.book.segment import LineReader
from rollbook.book.vouched import Vouched
from rollbook.core.failure import Failure, reopens
from rollbook.core.manifest import Round
from rollbook.core.seal import Seal
from rollbook.errors import BookError


class ScoredMark(msgspec.Struct, frozen=True):
    """The least that is read of a scored line."""

    task: str
    sample: int
    attempt: int


class FailedMark(msgspec.Struct, frozen=True):
    """The least that is read of a failed line."""

    task: str
    sample: int
    round: int
    attempt: int
    final: bool
    failure: Failure


class Keyed(Protocol):
    """What any reading of a scored line must have."""

    @property
    def task(self) -> str:
        """The task's id."""
        ...

    @property
    def sample(self) -> int:
        """Which try at the task."""
        ...

    @property
    def attempt(self) -> int:
        """Which attempt at the try."""
        ...


M = TypeVar("M", bound=Keyed)
NEVER = 1 << 30


def chunk_index(book: Book) -> Iterator[tuple[range, range, int, list[int]]]:
    """For every part: its rows, its samples, its first chunk number and the end of each chunk."""
    first = 0
    for part in book.plan.parts:
        ends, total = [], 0
        for size in part.chunks:
            total += size
            ends.append(total)
        yield range(*part.tasks), range(*part.samples), first, ends
        first += len(part.chunks)


class KeyMap:
    """From a key to its row, its place among all requested keys, and the chunk it belongs to."""

    def __init__(self, book: Book) -> None:
        self._rows = book.tasks.rows
        self._parts: list[tuple[range, range, int, list[int], int]] = []
        self.keys = 0
        for rows, samples, first, ends in chunk_index(book):
            self._parts.append((rows, samples, first, ends, self.keys))
            self.keys += len(rows) * len(samples)

    def find(self, task: str, sample: int) -> tuple[int, int, int] | None:
        """(row, place, chunk) of a key; None if the plan does not ask for it."""
        row = self._rows.get(task)
        if row is None:
            return None
        for rows, samples, first, ends, base in self._parts:
            if row in rows and sample in samples:
                place = (row - rows.start) * len(samples) + sample - samples.start
                return row, base + place, first + bisect_right(ends, place)
        return None


class Scored(Generic[M]):
    """Streams the scored lines that count: per key the lowest epoch, then the lowest attempt; sealed is sealed."""

    def __init__(self, book: Book, kind: type[M]) -> None:
        self._book, self._kind = book, kind
        self._keys = KeyMap(book)
        self._leases = Leases(book.path)
        self._leases.refresh()
        self._seals = Seals(book.path).refresh()
        self._seen = bytearray(self._keys.keys // 8 + 1)
        self._contested: dict[int, tuple[tuple[int, int], tuple[int, Path, int, M]]] = {}
        self.dropped = 0

    def __iter__(self) -> Iterator[tuple[int, Path, M]]:
        """(row, journal, line) for every key that is scored, in no order."""
        return ((row, path, line) for row, path, _, line in self.located())

    def located(self) -> Iterator[tuple[int, Path, int, M]]:
        """The same with the offset just behind the line in its journal."""
        reader = LineReader(self._kind)
        vouched = Vouched(self._book.path, self._seals)
        vouched.check_present(failures=False)
        for path in journal_files(self._book.path, failures=False):
            worker, end = worker_of(path), 0
            for end, line in reader.read(path):
                row = self._judge(path, worker, end, line)
                if row is not None:
                    yield row, path, end, line
            vouched.check_read(path, end)
        for _, counted in self._contested.values():
            yield counted

    def _judge(self, path: Path, worker: str, end: int, line: M) -> int | None:
        """The row of a line that counts beyond doubt; contested ones are kept for the end."""
        found = self._keys.find(line.task, line.sample)
        if found is None:
            raise BookError(f"{path}: task {line.task!r} sample {line.sample} is not in the plan")
        row, place, chunk = found
        contested = self._leases.epochs.get(chunk, 0) > 1
        epoch = self._leases.owners(chunk).get(worker, NEVER) if contested else 1
        if not counts(self._seals.get(chunk), epoch, path.name, end):
            self.dropped += 1
        elif contested:
            self._contest(place, (epoch, line.attempt), (row, path, end, line))
        elif self._seen[place >> 3] >> (place & 7) & 1:
            self.dropped += 1
        else:
            self._seen[place >> 3] |= 1 << (place & 7)
            return row
        return None

    def _contest(self, place: int, rank: tuple[int, int], counted: tuple[int, Path, int, M]) -> None:
        held = self._contested.get(place)
        self._seen[place >> 3] |= 1 << (place & 7)
        self.dropped += held is not None
        if held is None or rank < held[0]:
            self._contested[place] = (rank, counted)

    def missing(self) -> Iterator[tuple[int, int]]:
        """(row, sample) of every key without a score; ask after having iterated."""
        place = 0
        for rows, samples, _, _ in chunk_index(self._book):
            for row in rows:
                for sample in samples:
                    if not self._seen[place >> 3] >> (place & 7) & 1:
                        yield row, sample
                    place += 1


def counts(seal: Seal | None, epoch: int, name: str, end: int) -> bool:
    """Whether a line counts: all do until the chunk is sealed, then the sealed ones and those of later owners."""
    if seal is None or epoch > seal.epoch:
        return True
    return name in seal.files and end <= seal.files[name].bytes


def journal_files(run: Path, *, failures: bool) -> list[Path]:
    """The journals of scored lines, or of failed ones, in a stable order."""
    paths = (p for p in (run / "journals").glob("[!.]*.jsonl") if p.name.endswith(".failures.jsonl") == failures)
    return sorted(paths)


def worker_of(path: Path) -> str:
    """The worker that wrote a journal file."""
    return path.name.removesuffix(".jsonl").removesuffix(".failures").rpartition(".")[0]


class Failed:
    """The final failures that stand: of keys without a score, not reopened by a later round."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._rounds = book.rounds()
        self._vouched = Vouched(book.path, Seals(book.path).refresh())

    def __iter__(self) -> Iterator[FailedMark]:
        return (line for _, _, line in self.located())

    def located(self) -> Iterator[tuple[Path, int, FailedMark]]:
        """Each with its journal and the offset just behind its line."""
        reader = LineReader(FailedMark)
        self._vouched.check_present(failures=True)
        for path in journal_files(self._book.path, failures=True):
            end = 0
            for end, line in reader.read(path):
                if line.final and stands(line, self._rounds):
                    yield path, end, line
            self._vouched.check_read(path, end)


def stands(line: FailedMark, rounds: Iterable[Round]) -> bool:
    """Whether a final failure still holds, or a later round has taken it up again."""
    return not any(r.number > line.round and reopens(r.settings.retry, line.failure.kind) for r in rounds)
