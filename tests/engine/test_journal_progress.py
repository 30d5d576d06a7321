"""The progress of a run from its journals: every line once, one outcome for every rollout."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book, Journal, JournalEntry
from rollbook.core import Rollout, Settings, TokenCounts, add_crc
from rollbook.engine.journal_progress import FailedNumbers, JournalCounter, JournalTail, ScoredNumbers
from rollbook.engine.progress import Progress
from rollbook.errors import BookError
from support.books import failed, make_book, scored


def write(book: Book, *rollouts: Rollout, worker: str = "w", final: bool = True) -> None:
    async def go() -> None:
        journal = Journal(book.path, worker, lambda _: None)
        journal.start()
        for rollout in rollouts:
            await journal.add(JournalEntry(rollout, final))
        await journal.close()

    asyncio.run(go())


def open_tail(book: Book) -> JournalTail[ScoredNumbers, FailedNumbers]:
    return JournalTail(book, ScoredNumbers, FailedNumbers)


def count(book: Book) -> tuple[list[int | None], Progress]:
    """Return the rows of the outcomes, line by line, and the progress."""
    counter = JournalCounter(book)
    return [counter.add(line) for line in open_tail(book).read()], counter.progress()


@pytest.fixture
def book(tmp_path: Path) -> Book:
    made = make_book(tmp_path / "run", tasks=4, samples=3)
    made.open_round(Settings(retry=[], price="in=1000000,out=2000000,cached=500000"))
    return made


def test_scores_and_failures_are_counted(book: Book) -> None:
    write(book, scored(book, 0, 0, 1.0), scored(book, 3, 2, 0.5), failed(book, 1, 1))
    rows, progress = count(book)
    assert rows == [0, 3, 1]
    assert (progress.requested, progress.scored, progress.failed, progress.pending) == (12, 2, {"model_timeout": 1}, 9)
    assert progress.mean_reward == 0.75
    assert progress.seconds >= 0


def test_nothing_is_known_of_a_run_that_has_no_lines(book: Book) -> None:
    rows, progress = count(book)
    assert rows == []
    assert (progress.scored, progress.failed, progress.pending, progress.mean_reward) == (0, {}, 12, None)
    assert progress.cost == 0


def test_every_place_has_a_mark_of_its_own(book: Book) -> None:
    keys = [(row, sample) for row in range(4) for sample in range(3)]
    write(book, *(scored(book, *key) for key in keys))
    write(book, *(scored(book, *key) for key in reversed(keys)), worker="x")
    rows, progress = count(book)
    assert rows == [row for row, _ in keys] + [None] * 12
    assert (progress.scored, progress.pending) == (12, 0)


def test_a_score_replaces_a_failure_and_is_replaced_by_none(book: Book) -> None:
    counter, tail = JournalCounter(book), open_tail(book)
    outcomes = []
    for number, rollout in enumerate(
        [
            failed(book, 0, 0, "verifier_error"),
            failed(book, 0, 0, "model_timeout"),
            scored(book, 0, 0, 0.25),
            failed(book, 0, 0, "verifier_error"),
            scored(book, 0, 0, 1.0),
        ]
    ):
        write(book, rollout, worker=f"w{number}")
        (line,) = tail.read()
        row, progress = counter.add(line), counter.progress()
        outcomes.append((row, progress.scored, progress.failed, progress.pending))
        assert progress.mean_reward == (None if number < 2 else 0.25)
    assert outcomes == [
        (0, 0, {"verifier_error": 1}, 11),
        (0, 0, {"model_timeout": 1}, 11),
        (0, 1, {}, 11),
        (None, 1, {}, 11),
        (None, 1, {}, 11),
    ]


def test_an_attempt_that_is_repeated_is_no_outcome_but_its_tokens_count(book: Book) -> None:
    write(book, failed(book, 0, 0), final=False)
    rows, progress = count(book)
    assert rows == [None]
    assert (progress.failed, progress.pending) == ({}, 12)
    assert progress.tokens == TokenCounts(3, 0, 2)


def test_a_failure_that_a_later_round_repeats_is_pending(book: Book) -> None:
    write(book, failed(book, 0, 0, "model_timeout"), failed(book, 1, 0, "verifier_error"))
    assert count(book)[1].pending == 10
    book.open_round(Settings(retry=["infra"]))
    rows, progress = count(book)
    assert rows == [None, 1]
    assert (progress.failed, progress.pending) == ({"verifier_error": 1}, 11)


def test_cached_tokens_are_at_most_those_of_the_prompt(book: Book) -> None:
    rollouts = [scored(book, 0, sample) for sample in range(3)]
    for rollout, cached in zip(rollouts, (2, 9, -5), strict=True):
        rollout.turns = [msgspec.structs.replace(rollout.turns[0], cached_tokens=cached)]
    write(book, *rollouts)
    _, progress = count(book)
    assert progress.tokens == TokenCounts(9, 2 + 3, 6)
    assert progress.cost == pytest.approx(4 * 1.0 + 5 * 0.5 + 6 * 2.0)


def test_a_line_of_a_rollout_that_is_not_planned_is_left_out(book: Book) -> None:
    stranger = scored(book, 0, 0)
    stranger.sample = 7
    write(book, stranger)
    rows, progress = count(book)
    assert rows == [None]
    assert (progress.scored, progress.pending) == (0, 12)


def test_what_workers_report_is_kept_beside_the_counts(book: Book) -> None:
    latest = Progress(requested=12, scored=9, pending=3, in_flight=4, concurrency=8, outage="down", seconds=5)
    progress = JournalCounter(book).progress(latest)
    assert (progress.in_flight, progress.concurrency, progress.outage, progress.seconds) == (4, 8, "down", 5)
    assert (progress.scored, progress.pending) == (0, 12)


def test_a_tail_yields_every_line_once_and_a_torn_one_when_it_is_whole(book: Book) -> None:
    tail = open_tail(book)
    assert (list(tail.read()), tail.journals) == ([], 0)
    write(book, scored(book, 0, 0), scored(book, 1, 0), failed(book, 2, 0))
    first = tail.read()
    assert next(first).task == "t0"
    first.close()  # type: ignore[attr-defined]
    assert [line.task for line in tail.read()] == ["t1", "t2"]
    assert tail.journals == 2
    assert list(tail.read()) == []
    write(book, scored(book, 3, 0), worker="x")
    path, other = (book.path / "journals" / f"{worker}.1.jsonl" for worker in "wx")
    line = other.read_bytes()
    other.unlink()
    for piece, tasks in ((line[:20], []), (line[20:], ["t3"])):
        with path.open("ab") as file:
            file.write(piece)
        assert [each.task for each in tail.read()] == tasks


def test_a_malformed_line_is_named_by_its_number_however_often_the_file_was_read(book: Book) -> None:
    write(book, scored(book, 0, 0), scored(book, 0, 1))
    tail = open_tail(book)
    assert len(list(tail.read())) == 2
    (path,) = (book.path / "journals").glob("w.1.jsonl")
    with path.open("ab") as file:
        file.write(add_crc(b'{"task":"t0"}') + b"\n")
    with pytest.raises(BookError, match=r"w\.1\.jsonl:3: malformed line"):
        list(tail.read())
