"""Kept sheets change nothing but the time: every number is the one that a full read gives, or there is none."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rollbook.book import Book
from rollbook.core import JSON, SCHEMA_VERSION, Extent, Lease, Score, Seal, encode, make_scored_line
from rollbook.errors import BookError
from rollbook.reports import column_cache
from rollbook.reports.journal_columns import JournalColumns, read_journal_columns
from rollbook.reports.report import RunData, build_report
from rollbook.reports.run_columns import RunColumns
from support.books import encode_journal_line, make_book, scored

Reads = list[str]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The journals that were read line by line, as it goes; every journal is worth keeping."""
    seen: Reads = []

    def spy(path: Path, *more: object) -> JournalColumns:
        seen.append(path.name)
        return read_journal_columns(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(column_cache, "read_journal_columns", spy)
    monkeypatch.setattr(column_cache, "MIN_CACHED_BYTES", 1)
    return seen


def write_journal(book: Book, name: str, keys: list[tuple[int, int]], rng: random.Random, end: bytes = b"") -> None:
    lines = []
    for row, sample in keys:
        rollout = scored(book, row, sample)
        parts = {name: rng.random() for name in rng.sample(["right", "brief", "kind"], rng.randrange(4))}
        rollout.score = Score(rng.random(), parts, answer=rng.choice([None, "7", "7.0", "é", "x" * 300]))
        rollout.attempt = rng.randrange(1, 4)
        lines.append(encode_journal_line(make_scored_line(rollout, [None])))
    (book.path / "journals" / f"{name}.1.jsonl").write_bytes(b"".join(lines) + end)


def seal(book: Book, chunk: int, *names: str, epoch: int = 1) -> None:
    """Seal a chunk on all that these journals hold now."""
    files = {}
    for name in names:
        held = (book.path / "journals" / f"{name}.1.jsonl").read_bytes()
        files[f"{name}.1.jsonl"] = Extent(len(held), hashlib.sha256(held).hexdigest())
    (book.path / "done" / f"{chunk:05}.json").write_bytes(encode(Seal(1, epoch, 0, {}, 0, files)))


def lease(book: Book, chunk: int, *owners: str) -> None:
    for epoch, owner in enumerate(owners, start=1):
        (book.path / "leases" / f"{chunk:05}.{epoch}").write_bytes(encode(Lease(owner, 1)))


def keys_of(book: Book, *chunks: int) -> list[tuple[int, int]]:
    return [key for chunk in chunks for key in book.chunks[chunk]]


def sealed_book(path: Path) -> Book:
    """Two journals, all of both under seal."""
    book = make_book(path, tasks=8, samples=4)
    rng = random.Random(5)
    chunks = range(len(book.chunks))
    for at, name in enumerate("vw"):
        write_journal(book, name, keys_of(book, *chunks[at::2]), rng)
        for chunk in chunks[at::2]:
            lease(book, chunk, name)
            seal(book, chunk, name)
    return Book(path)


def open_ended(path: Path) -> Book:
    """A sealed journal with a torn end, and one with lines behind its seal."""
    book = make_book(path, tasks=8, samples=4)
    rng = random.Random(6)
    chunks = range(len(book.chunks))
    write_journal(book, "v", keys_of(book, *chunks[::2]), rng, b'{"torn')
    write_journal(book, "w", keys_of(book, *chunks[1:2]), rng)
    for chunk in chunks[:-1]:
        lease(book, chunk, "vw"[chunk % 2])
        seal(book, chunk, "vw"[chunk % 2])
    more = (book.path / "journals" / "w.1.jsonl").read_bytes()
    write_journal(book, "w", keys_of(book, *chunks[3::2]), rng)
    later = (book.path / "journals" / "w.1.jsonl").read_bytes()
    (book.path / "journals" / "w.1.jsonl").write_bytes(more + later)
    return Book(path)


def doubled(path: Path) -> Book:
    """Keys that two owners of a chunk have filled, and one owner twice."""
    book = make_book(path, tasks=8, samples=4)
    rng = random.Random(7)
    chunks = range(len(book.chunks))
    for name in "vw":
        write_journal(book, name, keys_of(book, *chunks) + keys_of(book, 0), rng)
    for chunk in chunks:
        lease(book, chunk, *("wv" if chunk % 3 else "v"))
        seal(book, chunk, "v", "w", epoch=2 if chunk % 3 else 1)
    return Book(path)


def numbers(*paths: Path) -> dict[str, JSON]:
    """All that a report says, but for where it lies."""
    return {**build_report(RunData(paths)).json(), "path": "", "merged": len(paths)}


def without_index(path: Path) -> Path:
    """A copy of a run in which nothing is kept, and whose files are as old as the run's."""
    bare = path.with_name(f"{path.name}-bare")
    shutil.rmtree(bare, ignore_errors=True)
    shutil.copytree(path, bare, ignore=shutil.ignore_patterns("index"))
    return bare


@pytest.mark.parametrize("make", [sealed_book, open_ended, doubled])
def test_kept_sheets_give_the_numbers_of_a_full_read(
    tmp_path: Path, reads: Reads, make: Callable[[Path], Book]
) -> None:
    book = make(tmp_path / "run")
    first, again = numbers(book.path), numbers(book.path)
    assert first == again == numbers(without_index(book.path))
    assert first["scored"] > 10
    names = ["v.1.jsonl", "w.1.jsonl"]
    assert sorted(reads[:2]) == names
    assert reads[2:-2] == (["w.1.jsonl"] if make is open_ended else [])


def test_what_is_kept_is_the_sheet_to_the_last_bit(tmp_path: Path, reads: Reads) -> None:
    book = doubled(tmp_path / "run")
    one, two = RunColumns([book]), RunColumns([book])
    assert len(reads) == 2
    for name in column_cache.SCALAR_COLUMNS:
        read, held = getattr(one.columns, name), getattr(two.columns, name)
        assert (read.dtype, read.tobytes()) == (held.dtype, held.tobytes())
    assert (one.answers.texts, one.parts.texts, one.dropped) == (two.answers.texts, two.parts.texts, two.dropped)
    assert one.columns.parts.value.tolist() == two.columns.parts.value.tolist()
    assert one.dropped > 30


def test_directories_of_one_run_are_merged_from_what_each_has_kept(tmp_path: Path, reads: Reads) -> None:
    one = sealed_book(tmp_path / "one")
    shutil.copytree(one.path, tmp_path / "two")
    (one.path / "journals" / "w.1.jsonl").unlink()
    for chunk in range(1, len(one.chunks), 2):
        (one.path / "done" / f"{chunk:05}.json").unlink()
    paths = one.path, tmp_path / "two"
    first = numbers(*paths)
    assert len(reads) == 3
    assert numbers(*paths) == first == numbers(*map(without_index, paths))
    assert (first["scored"], first["dropped"] > 0) == (32, True)
    assert len(reads) == 6  # the second time nothing, then the three of the copies


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_sheet_is_not_used_and_made_anew(tmp_path: Path, reads: Reads, seed: int) -> None:
    book = sealed_book(tmp_path / "run")
    expected = numbers(book.path)
    rng = random.Random(seed)
    place = book.path / "index" / "v.1.sheet"
    whole = place.read_bytes()
    flipped = bytearray(whole)
    flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    place.write_bytes(rng.choice([bytes(flipped), bytes(flipped), whole[: rng.randrange(len(whole))], b""]))
    assert numbers(book.path) == expected
    assert reads[2:] == ["v.1.jsonl"]
    assert numbers(book.path) == expected
    assert len(reads) == 3


@pytest.mark.parametrize(
    "content", [b"", b"\x10" + bytes(7) + b"a header of old and arrays", b"PK\x05\x06" + bytes(18), b"PK\x03\x04"]
)
def test_a_file_of_another_version_is_not_used_though_it_is_whole(tmp_path: Path, reads: Reads, content: bytes) -> None:
    book = sealed_book(tmp_path / "run")
    expected = numbers(book.path)
    (book.path / "index" / "v.1.sheet").write_bytes(content + hashlib.sha256(content).digest())
    assert numbers(book.path) == expected
    assert reads[2:] == ["v.1.jsonl"]


def test_a_journal_that_was_changed_is_read_and_refused_in_spite_of_what_is_kept(tmp_path: Path, reads: Reads) -> None:
    book = sealed_book(tmp_path / "run")
    numbers(book.path)
    journal = book.path / "journals" / "v.1.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"reward":0.', b'"reward":1.', 1))
    with pytest.raises(BookError, match="differs from what was sealed"):
        numbers(book.path)
    journal.unlink()
    with pytest.raises(BookError, match="is missing"):
        numbers(book.path)


def test_a_sheet_of_other_seals_of_other_tasks_or_of_another_version_is_not_used(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = sealed_book(tmp_path / "run")
    expected = numbers(book.path)
    extent = Extent((book.path / "journals" / "v.1.jsonl").stat().st_size, "0" * 64)
    tasks, journal = book.path / "tasks.jsonl", book.path / "journals" / "v.1.jsonl"
    assert column_cache.load_cached_columns(journal, SCHEMA_VERSION, tasks, {extent}) is None
    os.utime(tasks, ns=(1, 1))
    assert numbers(book.path) == expected
    assert len(reads) == 4
    monkeypatch.setattr(column_cache, "code_digest", lambda: "another version")
    assert numbers(book.path) == expected
    assert len(reads) == 6


def test_a_run_in_which_nothing_can_be_kept_has_its_numbers(tmp_path: Path, reads: Reads) -> None:
    book = sealed_book(tmp_path / "run")
    (book.path / "index").write_text("a file where the folder would be")
    assert numbers(book.path) == numbers(book.path) == numbers(without_index(book.path))
    assert len(reads) == 6
    assert not list(book.path.rglob("*.sheet*"))


def test_a_small_journal_is_not_worth_keeping(tmp_path: Path) -> None:
    book = sealed_book(tmp_path / "run")
    numbers(book.path)
    assert not (book.path / "index").exists()
