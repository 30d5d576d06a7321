"""The progress of a run: what is derived from its numbers, how often it is noted, how fast it goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollbook.book import Book, Claim, Journal, JournalEntry, make_presence
from rollbook.core import Settings
from rollbook.engine.book_worker import BookJobSource
from rollbook.engine.concurrency import FixedLimit
from rollbook.engine.progress import LineDisplay, Progress, ProgressCounter, RecentRate, count_pending
from rollbook.engine.worker import Worker
from support.books import failed, make_book, open_round, scored


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Lines(LineDisplay):
    """A display that keeps its lines."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda progress: f"{progress.scored}{progress.outage}", every_s=10, clock=clock)
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)


def make_progress(scored: int, outage: str = "") -> Progress:
    return Progress(requested=10, scored=scored, outage=outage)


def test_a_line_is_noted_every_few_seconds_and_the_last_numbers_at_the_end() -> None:
    clock = Clock()
    display = Lines(clock)
    for count, seconds in enumerate((0, 1, 8.9, 0.1, 0.1)):
        clock.now += seconds
        display.update(make_progress(count))
    assert display.lines == ["0", "3"]
    display.stop()
    display.stop()
    assert display.lines == ["0", "3", "4"]


def test_a_line_is_noted_at_once_where_an_outage_begins_or_ends() -> None:
    display = Lines(Clock())
    for outage in ("", "", " down", " down 2 s", "", ""):
        display.update(make_progress(1, outage))
    assert display.lines == ["1", "1 down", "1"]


def test_nothing_is_noted_of_a_run_without_numbers() -> None:
    display = Lines(Clock())
    display.stop()
    assert display.lines == []


def test_the_time_left_is_known_once_there_is_a_rate() -> None:
    assert Progress(requested=10, pending=6, rate=2.0).eta_s == 3.0
    assert Progress(requested=10, pending=6).eta_s is None


def test_the_cached_share_is_of_prompts_whose_server_reports_it() -> None:
    assert Progress(requested=10, prompt_tokens=8, cached_tokens=2).cached_share == 0.25
    assert Progress(requested=10).cached_share is None


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    clock = Clock()
    rate = RecentRate(clock)
    rates = []
    for seconds, count in ((0, 5), (5, 15), (5, 15), (0.5, 15), (4.5, 15), (10, 25)):
        clock.now += seconds
        rates.append(rate.update(count))
    assert rates == pytest.approx([0.0, 2.0, 1.0, 0.0, 0.0, 1.0])


def test_what_is_left_is_counted_by_the_journals(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    assert count_pending(book) == 6

    async def write() -> None:
        journal = Journal(book.path, "w", lambda _: None)
        journal.start()
        await journal.add(JournalEntry(scored(book, 0, 0)))
        await journal.close()

    asyncio.run(write())
    assert count_pending(book) == 5


def test_what_is_left_of_a_damaged_run_is_counted_by_its_seals(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    (book.path / "journals" / "w.1.jsonl").write_text("{}\n")
    assert count_pending(book) == 6


def make_counter(book: Book, **settings: object) -> ProgressCounter:
    return ProgressCounter(book, Settings(**settings))  # type: ignore[arg-type]


def make_worker() -> Worker:
    worker = Worker(None, None, FixedLimit(7), 1)  # type: ignore[arg-type]
    worker.stats.in_flight, worker.stats.loop_lag_ms = 5, 0.5
    worker.stats.model_ms, worker.stats.verify_ms = 11.0, 12.0
    return worker


def test_a_counter_shows_what_is_durable_and_what_its_worker_measures(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    counter = make_counter(book)
    assert counter.progress(make_worker()).mean_reward is None
    for entry in (
        JournalEntry(scored(book, 0, 0, 1.0)),
        JournalEntry(scored(book, 0, 1, 0.5)),
        JournalEntry(failed(book, 1, 0)),
        JournalEntry(failed(book, 1, 1), final=False),
    ):
        counter.record(entry)
    presence = make_presence(1, book.path)
    presence.prompt_tokens, presence.cached_tokens = 9, 4
    shown = counter.progress(make_worker(), "away", 1.5, presence)
    assert (shown.requested, shown.scored, shown.failed, shown.pending) == (8, 2, {"model_timeout": 1}, 5)
    assert (shown.mean_reward, shown.outage, shown.cost) == (0.75, "away", 1.5)
    assert (shown.prompt_tokens, shown.cached_tokens) == (9, 4)
    assert (shown.in_flight, shown.concurrency, shown.loop_lag_ms) == (5, 7, 0.5)
    assert (shown.model_ms, shown.verify_ms) == (11.0, 12.0)
    assert 0 <= shown.seconds < 60
    assert shown.rate > 0
    assert counter.stop_reason == ""
    bare = counter.progress(make_worker())
    assert (bare.prompt_tokens, bare.cached_tokens, bare.cost, bare.outage) == (0, 0, None, "")


def test_what_earlier_owners_did_counts_but_is_not_part_of_the_pace_or_the_reward(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    counter = make_counter(book)
    counter.add_claim(Claim(book.chunks[0], 2, [], scored=2, failed={"model_timeout": 1}))
    first = counter.progress(make_worker())
    assert (first.scored, first.failed, first.pending, first.rate) == (2, {"model_timeout": 1}, 5, 0.0)
    assert counter.progress(make_worker()).rate == 0.0
    counter.record(JournalEntry(scored(book, 3, 0)))
    assert counter.progress(make_worker()).mean_reward is None  # the rewards of earlier owners are not known


def test_sealed_chunks_count_from_the_start_unless_the_round_opens_them_again(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=2)
    round_ = open_round(book)

    async def work() -> None:
        jobs = BookJobSource(book, round_)
        await jobs.join()
        while job := await jobs.next():
            make = scored if job.sample else failed
            await jobs.mark(job, make(book, job.row, job.sample), True)
        await jobs.leave()

    asyncio.run(work())
    shown = make_counter(book).progress(make_worker())
    assert (shown.scored, shown.failed, shown.pending, shown.rate) == (1, {"model_timeout": 1}, 0, 0.0)
    open_round(book, retry=["model_timeout"])
    again = make_counter(book).progress(make_worker())
    assert (again.scored, again.failed, again.pending) == (1, {}, 1)


@pytest.mark.parametrize(
    ("settings", "count", "reason"),
    [
        ({}, 8, ""),
        ({"fail_fast": True}, 1, "stopped by --fail-fast at t0#0: model_timeout: as asked"),
        ({"max_failures": "2"}, 2, ""),
        ({"max_failures": "2"}, 4, "stopped by --max-failures 2, the last one t1#0: model_timeout: as asked"),
        ({"max_failures": "25%"}, 2, ""),
        ({"max_failures": "25%"}, 3, "stopped by --max-failures 25%, the last one t1#0: model_timeout: as asked"),
    ],
)
def test_failures_stop_a_run_where_more_than_allowed_are_final(
    tmp_path: Path, settings: dict[str, object], count: int, reason: str
) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    counter = make_counter(book, **settings)
    for number in range(count):
        counter.record(JournalEntry(failed(book, number // 2, number % 2)))
    assert counter.stop_reason == reason
