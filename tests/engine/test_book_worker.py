"""A worker's time at a book: what it does not finish it hands over as it leaves."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path

import pytest

from rollbook.book import ChunkClaimer, Claim, CountedLines, Leases, PeerMonitor, WorkerMonitor
from rollbook.book import journal as journals
from rollbook.book.counted_lines import ScoredLineHeader
from rollbook.book.heartbeats import WorkerGone, publish_worker_gone, read_presence, read_worker_gone
from rollbook.core import Seal
from rollbook.engine import book_worker as module
from rollbook.engine.book_worker import BookJobSource
from rollbook.engine.worker import RolloutJob
from support.books import make_book, open_round, scored


def test_who_leaves_early_says_what_it_leaves_and_the_next_claim_is_that(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=8, samples=2, workers=2)
    round_ = open_round(book)

    async def part() -> tuple[str, int]:
        shift = BookJobSource(book, round_)
        await shift.join()
        job = await shift.next()
        assert isinstance(job, RolloutJob)
        assert job.claim
        await shift.mark(job, scored(book, job.row, job.sample), True)
        await shift.leave()
        return shift.presence.id, job.claim.chunk.number

    worker, chunk = asyncio.run(part())
    obituary = read_worker_gone(book.path, worker)
    assert obituary
    assert obituary.chunks == {chunk: 1}
    heir = ChunkClaimer(book, round_, "heir").claim_next()
    assert heir
    assert (heir.chunk.number, heir.epoch, heir.scored) == (chunk, 2, 1)


def test_who_finishes_leaves_nothing_behind(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=2)
    round_ = open_round(book)

    async def work() -> str:
        shift = BookJobSource(book, round_)
        await shift.join()
        while job := await shift.next():
            await shift.mark(job, scored(book, job.row, job.sample), True)
        await shift.leave()
        return shift.presence.id

    assert read_worker_gone(book.path, asyncio.run(work())) is None
    assert ChunkClaimer(book, round_, "late").is_over()


def test_who_wakes_after_its_lease_was_taken_begins_no_more_keys_of_it(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=8, samples=2)
    round_, now = open_round(book), [0.0]

    async def part() -> tuple[int, int]:
        shift = BookJobSource(book, round_, watch=WorkerMonitor(book.path, lambda: now[0], stale_s=180))
        await shift.join()
        before = await shift.next()
        assert before
        assert before.claim
        now[0] = 200.0
        assert Leases(book.path, "heir", 1).claim(before.claim.chunk.number, 2)
        after = await shift.next()
        assert after
        assert after.claim
        await shift.leave()
        return before.claim.chunk.number, after.claim.chunk.number

    before, after = asyncio.run(part())
    assert before != after


def test_a_chunk_that_was_lost_and_claimed_again_stays_open_when_its_sealing_ends(tmp_path: Path) -> None:
    """The thread that seals gives the chunk back before the event loop hears of it."""
    book = make_book(tmp_path / "run", tasks=4, samples=2)

    async def go() -> None:
        shift = BookJobSource(book, open_round(book))
        await shift.join()
        assert await shift.claim_chunk()
        ((number, first),) = shift._open.items()
        Leases(book.path, "heir", 1).claim(number, 2)
        publish_worker_gone(book.path, "heir", WorkerGone(0, {number: 2}))
        shift._claims._gone_read_at = -math.inf
        seal, loop = shift._claims.seal, asyncio.get_running_loop()

        def seal_and_claim(claims: list[tuple[Claim, Seal]]) -> None:
            seal(claims)
            asyncio.run_coroutine_threadsafe(shift.claim_chunk(), loop).result()

        shift._claims.seal = seal_and_claim  # type: ignore[method-assign]
        await shift._write_seals([first])
        assert shift._open[number].epoch == 3
        await shift.leave()

    asyncio.run(go())


def test_a_beat_that_takes_long_does_not_come_after_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run")
    round_ = open_round(book)
    begun, slow, order = threading.Event(), threading.Event(), []

    def look(self: PeerMonitor) -> None:
        begun.set()
        slow.wait(30)
        order.append("beaten")

    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(PeerMonitor, "check", look)

    async def part() -> str:
        shift = BookJobSource(book, round_)
        await shift.join()
        await asyncio.to_thread(begun.wait, 30)
        leaving = asyncio.create_task(shift.leave())
        await asyncio.sleep(0.05)
        assert not leaving.done()
        slow.set()
        await leaving
        order.append("left")
        return shift.presence.id

    presence = read_presence(book.path, asyncio.run(part()))
    assert presence
    assert (presence.state, order) == ("left", ["beaten", "left"])


def test_who_is_cancelled_while_it_leaves_leaves_in_order_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was marked is lost, and a heart that goes on beating holds its chunks for ever."""
    book = make_book(tmp_path / "run")
    round_ = open_round(book)
    begun, slow = threading.Event(), threading.Event()

    def write(pending: list[tuple[journals._AppendFile, bytes]]) -> None:
        begun.set()
        slow.wait(30)
        write_all(pending)

    write_all = journals._write_all
    monkeypatch.setattr(journals, "_write_all", write)

    async def part() -> tuple[str, set[str]]:
        shift = BookJobSource(book, round_)
        await shift.join()
        job = await shift.next()
        assert job
        await shift.mark(job, scored(book, job.row, job.sample), True)
        leaving = asyncio.create_task(shift.leave())
        await asyncio.to_thread(begun.wait, 30)
        for _ in range(3):
            leaving.cancel()
            await asyncio.sleep(0.01)
        slow.set()
        await asyncio.wait({leaving})
        assert leaving.cancelled()
        return shift.presence.id, {task.get_name() for task in asyncio.all_tasks()}

    worker, left = asyncio.run(part())
    presence = read_presence(book.path, worker)
    assert presence
    assert presence.state == "left"
    assert sum(1 for _ in CountedLines(book, ScoredLineHeader)) == 1
    assert not left & {"heartbeat", "journal", "leaving"}
