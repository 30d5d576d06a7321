"""The progress of a run: what is derived from its numbers, how often it is noted, how fast it goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollbook.book import Journal, JournalEntry
from rollbook.engine.progress import LineDisplay, Progress, RecentRate, count_pending
from support.books import make_book, scored


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
