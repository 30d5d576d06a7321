"""Cached prompt tokens, and the tail of a run, in reports, status and progress."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book, ChunkClaimer, Journal, JournalEntry, read_status
from rollbook.book.heartbeats import make_presence, write_heartbeat
from rollbook.cli.main import main
from rollbook.core import Timing
from rollbook.engine import run_async
from rollbook.reports import Report, make_report
from support.books import failed, make_book, open_round, scored
from support.endpoint import Endpoint
from support.sums import write_script, write_sums


def run_cached(folder: Path, cached: int | None) -> Report:
    async def go() -> Report:
        async with Endpoint(right=1.0) as endpoint:
            endpoint.cached = cached
            done = await run_async(write_sums(folder), endpoint.url, samples=2, out=folder / "run")
            return done.report

    return asyncio.run(go())


def test_cached_prompt_tokens_are_summed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_cached(tmp_path, 3)
    assert report.cache is not None
    assert report.cache.cached_tokens == 3 * 20
    assert report.cache.prompt_tokens == report.overall.prompt_tokens > 3 * 20
    share = report.cache.cached_tokens / report.cache.prompt_tokens
    assert report.json()["cache"]["share"] == share
    assert json.loads((tmp_path / "run" / "metrics.json").read_bytes())["cache"]["cached_tokens"] == 60
    status = read_status(tmp_path / "run")
    assert (status.cached_tokens, status.prompt_tokens) == (60, report.cache.prompt_tokens)
    words = f"{share:.0%} of the prompt tokens cached"
    for command in ("report", "status"):
        with pytest.raises(SystemExit):
            main([command, str(tmp_path / "run")])
        assert words in capsys.readouterr().out


def test_more_than_the_prompt_cannot_be_cached(tmp_path: Path) -> None:
    report = run_cached(tmp_path, 10**6)
    assert report.cache is not None
    assert report.cache.share == 1.0


def test_a_server_that_does_not_tell_has_no_share(tmp_path: Path) -> None:
    report = run_cached(tmp_path, None)
    assert report.cache is None
    assert read_status(tmp_path / "run").prompt_tokens == 0


def fill(
    book: Book, ends: list[float], round_number: int = 1, sample: int = 0, *, failing: frozenset[int] = frozenset()
) -> None:
    """Score a sample of every task, or fail it, each from 0 s on to its own end."""
    presence = make_presence(round_number)
    write_heartbeat(book.path, presence)
    claims = ChunkClaimer(book, book.rounds()[-1], presence.id)
    while claims.claim_next():
        pass
    marks = [
        (failed if row in failing else scored)(book, row, sample, round_number=round_number) for row in range(len(ends))
    ]
    began = book.rounds()[-1].started

    async def go() -> None:
        journal = Journal(book.path, presence.id, lambda _: None)
        journal.start()
        for mark, end in zip(marks, ends, strict=True):
            mark.timing = Timing(began, end, end, 0.0, 0.0)
            await journal.add(JournalEntry(mark, True))
        await journal.close()

    asyncio.run(go())


def test_the_tail_is_the_time_of_the_last_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = make_book(tmp_path / "run", tasks=40, samples=1)
    open_round(book)
    fill(book, [*(1.0 + 0.1 * row for row in range(38)), 20.0, 30.0])
    tail = make_report(book.path).tail
    assert tail is not None
    assert (tail.seconds, tail.round_s, tail.rollouts) == (pytest.approx(25.3, abs=0.01), pytest.approx(30.0), 2)
    assert [(each.task, each.sample, each.tokens) for each in tail.last[:2]] == [("t39", 0, 2), ("t38", 0, 2)]
    with pytest.raises(SystemExit):
        main(["report", str(book.path)])
    assert "tail: the last 2 rollouts took 25 s of 30 s; t39#0 (30 s, 2 tokens), t38#0" in capsys.readouterr().out


def test_a_rollout_that_failed_keeps_a_run_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = make_book(tmp_path / "run", tasks=40, samples=1)
    open_round(book)
    fill(book, [*(1.0 for _ in range(39)), 30.0], failing=frozenset({39}))
    tail = make_report(book.path).tail
    assert tail is not None
    assert (tail.seconds, tail.last[0].task, tail.last[0].failure) == (pytest.approx(29.0), "t39", "model_timeout")
    with pytest.raises(SystemExit):
        main(["report", str(book.path)])
    assert "t39#0 (30 s, model_timeout)" in capsys.readouterr().out


def test_only_the_last_round_has_a_tail(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=40, samples=1)
    open_round(book)
    fill(book, [*(1.0 for _ in range(39)), 500.0])
    book.extend(2, 1)
    book = Book(book.path)
    rounds = book.path / "rounds"
    later = msgspec.structs.replace(book.rounds()[0], number=2, started=book.rounds()[0].started + 1000)
    (rounds / "0002.json").write_bytes(msgspec.json.encode(later))
    fill(book, [*(1.0 for _ in range(39)), 3.0], 2, 1)
    tail = make_report(book.path).tail
    assert tail is not None
    assert tail.round_s == pytest.approx(3.0)


def test_a_few_rollouts_have_no_tail(tmp_path: Path) -> None:
    from rollbook import run

    report = run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run").report  # type: ignore[union-attr]
    assert report.tail is None
