"""The tally counts exactly what the book's own reader counts, however messy the book."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book, CountedLines, TaskFile
from rollbook.core import Extent, Lease, Score, ScoredLine, Seal, add_crc, encode, make_scored_line
from rollbook.errors import BookError
from rollbook.reports import run_columns
from rollbook.reports.run_columns import RunColumns
from rollbook.stats import NO_ANSWER
from support.books import encode_journal_line, make_book, scored

WORKERS = ("w0", "w1", "w2")


def messy_book(path: Path, seed: int) -> Book:
    """Keys filled twice and thrice, chunks with several owners, seals that end in the middle of files, torn ends."""
    rng = random.Random(seed)
    book = make_book(path, tasks=9, samples=4)
    for chunk in range(len(book.chunks)):
        for epoch in range(1, rng.choice((1, 1, 2, 3)) + 1):
            lease = Lease(rng.choice(WORKERS), 1)
            (path / "leases" / f"{chunk:05}.{epoch}").write_bytes(encode(lease))
    for worker in WORKERS:
        for segment in (1, 2):
            write_journal(book, path / "journals" / f"{worker}.{segment}.jsonl", rng)
    for chunk in range(len(book.chunks)):
        if rng.random() < 0.5:
            write_seal(path, chunk, rng)
    return Book(path)


def write_journal(book: Book, path: Path, rng: random.Random) -> None:
    lines = []
    for _ in range(rng.randrange(0, 16)):
        rollout = scored(book, rng.randrange(9), rng.randrange(4), reward=rng.random())
        rollout.attempt = rng.randrange(1, 4)
        lines.append(encode_journal_line(make_scored_line(rollout, [None])))
    torn = rng.choice((b"", b"", b'{"status":"sco', b"\0\0\0"))
    path.write_bytes(b"".join(lines) + torn)


def write_seal(path: Path, chunk: int, rng: random.Random) -> None:
    files = {}
    for journal in sorted((path / "journals").iterdir()):
        if rng.random() < 0.7:
            held = journal.read_bytes()
            size = rng.choice([0, len(held), *(at + 1 for at, byte in enumerate(held) if byte == 10)])
            files[journal.name] = Extent(size, hashlib.sha256(held[:size]).hexdigest())
    epoch = rng.randrange(0, 3)
    (path / "done" / f"{chunk:05}.json").write_bytes(encode(Seal(1, epoch, 0, {}, 0, files)))


def tallied(tally: RunColumns) -> Counter[tuple[int, float]]:
    return Counter(zip(tally.columns.task.tolist(), tally.columns.reward.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_the_reader_of_the_book_line_by_line(tmp_path: Path, seed: int) -> None:
    book = messy_book(tmp_path / "run", seed)
    reader = CountedLines(book, ScoredLine)
    expected = Counter((row, line.reward) for row, _, line in reader)
    tally = RunColumns([book])
    assert tallied(tally) == expected
    assert tally.dropped == reader.dropped
    assert list(tally.missing_keys()) == list(reader.iterate_missing())


def test_helpers_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = messy_book(tmp_path / "run", 7)
    alone = tallied(RunColumns([book]))
    started = []
    helper = run_columns._ReaderProcess

    def spy(tasks: TaskFile, files: dict[Path, list[int]]) -> object:
        started.append(files)
        return helper(tasks, files)

    monkeypatch.setattr(run_columns, "_ReaderProcess", spy)
    monkeypatch.setattr(run_columns, "choose_reader_count", lambda paths: 3)
    assert tallied(RunColumns([book])) == alone
    assert len(started) == 2


def test_what_a_helper_cannot_read_is_read_here_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_columns, "choose_reader_count", lambda paths: 3)
    book = messy_book(tmp_path / "run", 7)
    broken = tmp_path / "run" / "journals" / "w9.1.jsonl"
    broken.write_bytes((add_crc(b'{"status":"scored"}') + b"\n") * 200)
    with pytest.raises(BookError, match=r"w9\.1\.jsonl:1: malformed line"):
        RunColumns([book])


@pytest.mark.parametrize("readers", [1, 3])
def test_a_line_without_a_checksum_is_damaged_whoever_reads_it(
    tmp_path: Path, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_columns, "choose_reader_count", lambda paths: readers)
    book = make_book(tmp_path / "run", tasks=4, samples=1)
    for row in range(4):
        line = encode_journal_line(make_scored_line(scored(book, row, 0), [None]))
        (book.path / "journals" / f"w{row}.1.jsonl").write_bytes(line.replace(b'"crc"', b'"crX"'))
    read = RunColumns([book])
    assert len(read.columns) == 0
    names = [f"w{row}.1.jsonl:1: the checksum is missing" for row in range(4)]
    assert [f"{line.path.name}:{line.number}: {line.why}" for line in read.damaged] == names


def test_a_task_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    line = make_scored_line(scored(book, 0, 0), [None])
    (book.path / "journals" / "w.1.jsonl").write_bytes(
        b"".join(encode_journal_line(msgspec.structs.replace(line, sample=sample)) for sample in (0, 99))
    )
    with pytest.raises(BookError, match=r"w\.1\.jsonl:2: task 't0' sample 99 is not in the plan: restore plan\.json"):
        RunColumns([book])


def test_sealed_bytes_that_have_changed_are_refused(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    journal = book.path / "journals" / "w.1.jsonl"
    journal.write_bytes(encode_journal_line(make_scored_line(scored(book, 0, 0), [None])))
    seal = Seal(1, 1, 1, {}, 0, {journal.name: Extent(journal.stat().st_size, "0" * 64)})
    (book.path / "done" / "00000.json").write_bytes(encode(seal))
    with pytest.raises(BookError, match="sealed"):
        RunColumns([book])


def test_answers_are_counted_in_one_form(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=4)
    line = make_scored_line(scored(book, 0, 0), [None])
    given = ["1,000", "1000.0", " x ", "y" * 500]
    lines = [msgspec.structs.replace(line, sample=at, answer=answer) for at, answer in enumerate(given)]
    (book.path / "journals" / "w.1.jsonl").write_bytes(b"".join(map(encode_journal_line, lines)))
    tally = RunColumns([book])
    texts = [tally.answers.texts[number] for number in tally.columns.answer.tolist()]
    assert texts[:3] == ["1000", "1000", "x"]
    assert len(texts[3]) < 250


def test_a_blank_answer_is_none(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=4)
    lines = []
    for sample, answer in enumerate(("", " \n", None, " 7.0 ")):
        rollout = scored(book, 0, sample)
        rollout.score = Score(1.0, answer=answer)
        lines.append(encode_journal_line(make_scored_line(rollout, [None])))
    (book.path / "journals" / "w.1.jsonl").write_bytes(b"".join(lines))
    tally = RunColumns([book])
    assert tally.columns.answer.tolist() == [NO_ANSWER, NO_ANSWER, NO_ANSWER, 0]
    assert tally.answers.texts == ["7"]
