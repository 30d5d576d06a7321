"""Finding the stored rollout of one key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollbook.book import Book, Journal, JournalEntry, LineIndex
from rollbook.core import Rollout
from rollbook.errors import BookError
from support.books import edit_journal, failed, make_book, open_round, scored


def write(book: Book, worker: str, *rollouts: Rollout) -> None:
    async def go() -> None:
        journal = Journal(book.path, worker, lambda _: None)
        journal.start()
        for rollout in rollouts:
            await journal.add(JournalEntry(rollout))
        await journal.close()

    asyncio.run(go())


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """A book with rollouts of two workers, one of which has failed for good."""
    book = make_book(tmp_path / "run")
    open_round(book)
    write(book, "a", scored(book, 0, 0, reward=0.25, tokens=True), scored(book, 1, 1))
    write(book, "b", scored(book, 2, 0, reward=0.75), failed(book, 3, 1, "verifier_error"))
    return book


def test_every_stored_rollout_is_found_with_its_tokens(book: Book) -> None:
    index = LineIndex(book)
    first = index.read("t0", 0)
    assert first
    assert (first.key, first.reward) == (("t0", 0), 0.25)
    assert first.turns == scored(book, 0, 0, tokens=True).turns
    rewards = [found.reward for key in (("t1", 1), ("t2", 0)) if (found := index.read(*key))]
    assert rewards == [1.0, 0.75]


def test_a_final_failure_is_found_too(book: Book) -> None:
    found = LineIndex(book).read("t3", 1)
    assert found
    assert found.failure
    assert (found.failure.kind, found.score) == ("verifier_error", None)


@pytest.mark.parametrize(("task", "sample"), [("t0", 1), ("t0", 2), ("t9", 0)])
def test_a_key_without_a_rollout_has_none(book: Book, task: str, sample: int) -> None:
    index = LineIndex(book)
    assert (index.has(task, sample), index.read(task, sample)) == (False, None)


def test_missing_keys_are_counted(book: Book) -> None:
    index = LineIndex(book)
    assert index.missing == 4
    assert sum(index.has(f"t{row}", sample) for row in range(4) for sample in range(2)) == 4


def test_a_score_replaces_a_failure(book: Book) -> None:
    write(book, "c", scored(book, 3, 1, reward=0.5))
    found = LineIndex(book).read("t3", 1)
    assert found
    assert (found.reward, LineIndex(book).missing) == (0.5, 4)


def test_a_malformed_failure_is_refused_with_its_line_before_any_is_used(book: Book) -> None:
    write(book, "b2", failed(book, 3, 0, "verifier_error"), failed(book, 2, 1, "verifier_error"))
    path = book.path / "journals" / "b2.1.failures.jsonl"
    assert edit_journal(path, '"messages":', '"messages":1,"more":') == 2
    with pytest.raises(BookError, match=r"b2\.1\.failures\.jsonl:1"):
        LineIndex(book)
