"""The tokens in the journals of a run, counted while it is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book, SpentTokens, token_counts
from rollbook.book.journal import Journal, JournalEntry
from rollbook.core import RoleCall, Rollout, TokenCounts, Turn
from support.books import failed, make_book, scored


def write(book: Book, *rollouts: Rollout, worker: str = "w") -> None:
    async def go() -> None:
        journal = Journal(book.path, worker, lambda _: None)
        journal.start()
        for rollout in rollouts:
            await journal.add(JournalEntry(rollout))
        await journal.close()

    asyncio.run(go())


def use_tokens(rollout: Rollout, *turns: tuple[int, int, int | None]) -> Rollout:
    """Give a rollout turns with these tokens of prompts and answers, and cached ones."""
    rollout.turns = [Turn(None, None, None, prompt, done, cached_tokens=cached) for prompt, done, cached in turns]
    return rollout


def test_the_tokens_of_every_attempt_of_every_worker_count(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    spent = SpentTokens(book.path)
    assert spent.refresh() == TokenCounts()
    write(book, use_tokens(scored(book, 0, 0), (10, 2, None), (20, 3, None)))
    write(book, use_tokens(failed(book, 1, 0), (100, 7, None)), worker="v")
    assert spent.refresh() == TokenCounts(prompt=130, cached=0, completion=12)
    assert spent.journals == len(list((book.path / "journals").glob("*.jsonl")))


def test_what_was_read_is_not_counted_again(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    write(book, use_tokens(scored(book, 0, 0), (10, 2, None)))
    spent = SpentTokens(book.path)
    (path,) = (book.path / "journals").glob("w.1.jsonl")
    line = path.read_bytes()
    counts = [spent.refresh().prompt, spent.refresh().prompt]
    for more in (line[:-5], line[-5:]):  # the second part ends a line that was torn
        with path.open("ab") as file:
            file.write(more)
        counts.append(spent.refresh().prompt)
    assert counts == [10, 10, 10, 20]


def test_cached_tokens_are_at_most_those_of_the_prompt(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    write(book, use_tokens(scored(book, 0, 0), (10, 2, 4), (20, 3, 50), (5, 1, None)))
    assert SpentTokens(book.path).refresh() == TokenCounts(prompt=35, cached=24, completion=6)


def test_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    write(book, use_tokens(scored(book, 0, 0), (10, 2, None)), use_tokens(scored(book, 1, 0), (20, 3, None)))
    (path,) = (book.path / "journals").glob("w.1.jsonl")
    path.write_bytes(path.read_bytes().replace(b"{", b"#", 1))
    assert SpentTokens(book.path).refresh() == TokenCounts(prompt=20, completion=3)


def test_scored_rollouts_with_a_turn_without_counts_are_counted(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    write(
        book,
        use_tokens(scored(book, 0, 0), (10, 2, None), (0, 0, None)),
        use_tokens(scored(book, 1, 0), (10, 0, None)),
        use_tokens(scored(book, 2, 0), (0, 2, None)),
        use_tokens(failed(book, 3, 0), (0, 0, None)),
    )
    spent = SpentTokens(book.path)
    spent.refresh()
    assert spent.uncounted == 1


def test_the_calls_of_roles_are_summed_and_their_cost_is_that_of_those_with_a_price(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    judge = RoleCall("judge", 0, 1, "5", prompt_tokens=30, completion_tokens=4, cost=0.25)
    user = RoleCall("user", 0, 1, "hello", prompt_tokens=7, completion_tokens=1)
    one, two = scored(book, 0, 0), failed(book, 1, 0)
    one.role_calls, two.role_calls = [judge, user], [msgspec.structs.replace(judge, number=1, cost=0.5)]
    write(book, one, two)
    spent = SpentTokens(book.path)
    spent.refresh()
    assert spent.role_cost == 0.75
    assert (spent.roles["judge"].calls, spent.roles["judge"].prompt_tokens) == (2, 60)
    assert (spent.roles["user"].completion_tokens, spent.roles["user"].cost) == (1, None)


def test_rollouts_with_a_priced_call_of_a_role_without_counts_are_counted(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    counted = RoleCall("judge", 0, 1, "5", prompt_tokens=3, completion_tokens=1, cost=0.5)
    priced, free = RoleCall("judge", 0, 1, "5", cost=0.0), RoleCall("user", 0, 1, "5")
    rollouts = [scored(book, 0, 0), scored(book, 1, 0), scored(book, 2, 0)]
    for rollout, calls in zip(rollouts, ([counted, free], [priced, priced], [priced, free]), strict=True):
        rollout.role_calls = list(calls)
    write(book, *rollouts)
    spent = SpentTokens(book.path)
    spent.refresh()
    assert spent.uncounted_roles == 2


def test_the_journals_of_one_worker_are_left_out_where_it_counts_itself(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    write(book, use_tokens(scored(book, 0, 0), (10, 2, None)), worker="w")
    write(
        book, use_tokens(failed(book, 1, 0), (100, 7, None)), use_tokens(scored(book, 1, 0), (1, 1, None)), worker="v"
    )
    write(book, use_tokens(scored(book, 2, 0), (1000, 9, None)), worker="changed")
    found = {name: SpentTokens(book.path, name).refresh().prompt for name in ("", "w", "v", "other")}
    assert found == {"": 1111, "w": 1101, "v": 1010, "other": 1111}
    assert SpentTokens(book.path).refresh().prompt == 1111


def test_a_journal_that_has_not_grown_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = make_book(tmp_path / "run")
    write(book, use_tokens(scored(book, 0, 0), (10, 2, None)))
    spent, opened = SpentTokens(book.path), list[Path]()
    read = token_counts.read_line_blocks
    monkeypatch.setattr(token_counts, "read_line_blocks", lambda path, start: opened.append(path) or read(path, start))
    for _ in range(3):
        assert spent.refresh().prompt == 10
    assert len(opened) == 1


def test_nothing_is_spent_before_the_first_look(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    write(book, use_tokens(scored(book, 0, 0), (0, 0, None)))
    spent = SpentTokens(book.path)
    assert (spent.journals, spent.uncounted, spent.uncounted_roles, spent.role_cost) == (0, 0, 0, 0.0)
    assert spent.refresh() == TokenCounts()
    assert (spent.journals, spent.uncounted) == (1, 1)


def test_a_line_without_counts_or_turns_has_used_nothing(tmp_path: Path) -> None:
    """As those of other versions may be."""
    book = make_book(tmp_path / "run")
    (book.path / "journals" / "w.1.jsonl").write_bytes(b'{"task":"t0"}\n{"turns":[{}]}\n')
    spent = SpentTokens(book.path)
    assert (spent.refresh(), spent.uncounted) == (TokenCounts(), 1)
