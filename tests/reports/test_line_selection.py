"""Which lines count: the line-by-line form of the book and the column form of the reports select the same lines."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbook.book import Book, CountedLines, FinalFailures, LineIndex
from rollbook.core import (
    Extent,
    Lease,
    ScoredLine,
    Seal,
    encode,
    make_failed_line,
    make_scored_line,
)
from rollbook.reports import JournalColumns, RunColumns, RunData, read_all_columns
from support.books import encode_journal_line, failed, make_book, open_round, scored

TASKS, SAMPLES, MORE_SAMPLES = 3, 2, 3
JOURNALS = ("a.1", "a.2", "b.1", "c.1")
KINDS = ("model_timeout", "verifier_error")
TORN = (b"", b'{"status":"sco', b"\0\0\0")

keys = st.tuples(st.integers(0, TASKS - 1), st.integers(0, MORE_SAMPLES - 1))
scored_lines = st.lists(st.tuples(keys, st.integers(1, 3)), max_size=14)
failed_lines = st.lists(st.tuples(keys, st.sampled_from(KINDS), st.booleans(), st.integers(1, 2)), max_size=5)
journals = st.fixed_dictionaries({name: st.tuples(scored_lines, failed_lines) for name in JOURNALS})
owners = st.lists(st.sampled_from("abc"), max_size=3)
"""The workers that claimed a chunk, one an epoch; one that wrote lines without a lease may be among the others."""

seals = st.none() | st.tuples(st.integers(0, 3), st.sets(st.sampled_from(JOURNALS)), st.floats(0, 1))
reopened = st.lists(st.sampled_from([[], ["infra"], ["verifier_error"], ["all"]]), max_size=2)


@st.composite
def run_directories(draw: st.DrawFn) -> dict[str, object]:
    return {
        "journals": draw(journals),
        "torn": draw(st.sampled_from(TORN)),
        "owners": draw(st.lists(owners, min_size=9, max_size=9)),
        "seals": draw(st.lists(seals, min_size=9, max_size=9)),
        "rounds": draw(reopened),
    }


def write_run(path: Path, plan: dict) -> Book:
    book = make_book(path, TASKS, SAMPLES)
    book.extend(MORE_SAMPLES, 2)
    for retry in [["infra"], *plan["rounds"]]:
        open_round(book, retry)
    for number, workers in zip(range(len(book.chunks)), plan["owners"], strict=False):
        for epoch, worker in enumerate(workers, start=1):
            (path / "leases" / f"{number:05}.{epoch}").write_bytes(encode(Lease(worker, 1)))
    for name, (good, bad) in plan["journals"].items():
        write_journals(book, name, good, bad, plan["torn"])
    for number, seal in zip(range(len(book.chunks)), plan["seals"], strict=False):
        if seal is not None:
            write_seal(path, number, *seal)
    return Book(path)


def write_journals(book: Book, name: str, good: list, bad: list, torn: bytes) -> None:
    lines = []
    for number, ((row, sample), attempt) in enumerate(good):
        rollout = scored(book, row, sample, reward=number / 16)
        rollout.attempt = attempt
        lines.append(encode_journal_line(make_scored_line(rollout, [None])))
    (book.path / "journals" / f"{name}.jsonl").write_bytes(b"".join(lines) + torn)
    failures = [
        encode_journal_line(make_failed_line(failed(book, *key, kind, round_number=number), [None], final))
        for key, kind, final, number in bad
    ]
    (book.path / "journals" / f"{name}.failures.jsonl").write_bytes(b"".join(failures))


def write_seal(path: Path, chunk: int, epoch: int, names: set[str], share: float) -> None:
    """Seal a chunk on some journals, each up to one of its lines."""
    files = {}
    for name in names:
        data = (path / "journals" / f"{name}.jsonl").read_bytes()
        ends = [0, *(at + 1 for at, byte in enumerate(data) if byte == 10)]
        size = ends[round(share * (len(ends) - 1))]
        files[f"{name}.jsonl"] = Extent(size, hashlib.sha256(data[:size]).hexdigest())
    (path / "done" / f"{chunk:05}.json").write_bytes(encode(Seal(1, epoch, 0, {}, 0, files)))


def lines_by_columns(book: Book) -> tuple[set[tuple[str, int]], RunColumns]:
    sheets: list[JournalColumns] = []

    def read(book: Book, files: Mapping[Path, Set[Extent]]) -> Iterator[JournalColumns]:
        sheets.extend(read_all_columns(book, files))
        return iter(sheets)

    columns = RunColumns([book], read=read)
    pairs = zip(sheets, columns.chosen, strict=True)
    return {(sheet.path.name, end) for sheet, chosen in pairs for end in sheet.ends[chosen].tolist()}, columns


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=run_directories())
def test_both_forms_select_the_same_lines(plan: dict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        book = write_run(Path(folder) / "run", plan)
        reader = CountedLines(book, ScoredLine)
        by_line = {(path.name, end): line for _, path, end, line in reader.iterate_with_offsets()}
        by_columns, columns = lines_by_columns(book)
        assert by_columns == set(by_line)
        assert len({(line.task, line.sample) for line in by_line.values()}) == len(by_line)
        assert columns.dropped == reader.dropped
        missing = list(reader.iterate_missing())
        assert list(columns.missing_keys()) == missing

        failures = {(line.task, line.sample): line.failure.kind for line in FinalFailures(book)}
        why = [(f"t{row}", sample, failures.get((f"t{row}", sample), "pending")) for row, sample in missing]
        assert [(task, sample, text.partition(":")[0]) for task, sample, text in RunData([book.path]).missing] == why

        stored = LineIndex(book)
        assert stored.missing == sum(kind == "pending" for _, _, kind in why)
        for line in by_line.values():
            rollout = stored.read(line.task, line.sample)
            assert rollout is not None
            assert (rollout.reward, rollout.attempt) == (line.reward, line.attempt)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_line_that_another_directory_outranks_is_named(tmp_path: Path, order: tuple[int, int]) -> None:
    for attempt in (1, 2):
        book = make_book(tmp_path / str(attempt), tasks=1, samples=1)
        rollout = scored(book, 0, 0, reward=attempt / 4)
        rollout.attempt = attempt
        (book.path / "journals" / "w.1.jsonl").write_bytes(encode_journal_line(make_scored_line(rollout, [None])))
    books = [Book(tmp_path / "1"), Book(tmp_path / "2")]
    columns = RunColumns([books[at] for at in order])
    journal = tmp_path / "2" / "journals" / "w.1.jsonl"
    assert columns.columns.reward.tolist() == [0.25]
    assert columns.outranked == {(journal, journal.stat().st_size)}
