"""A worker's time at a book: what it does not finish it hands over as it leaves."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rollbook.book import ChunkClaimer, Claim, CountedLines, Leases, PeerMonitor, Seals, WorkerMonitor
from rollbook.book import journal as journals
from rollbook.book.counted_lines import ScoredLineHeader
from rollbook.book.heartbeats import WorkerGone, publish_worker_gone, read_in_flight, read_presence, read_worker_gone
from rollbook.core import Seal
from rollbook.engine import book_worker as module
from rollbook.engine.book_worker import BookJobSource, drain_on_event, stop_on_signals
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.worker import RolloutJob, WorkerStats
from rollbook.errors import BookUnwritable
from support.books import failed, make_book, open_round, scored


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


def test_only_what_is_under_way_is_in_flight_for_others(tmp_path: Path) -> None:
    """After a crash each of these keys counts a death of its worker."""
    book = make_book(tmp_path / "run", tasks=4, samples=2)

    async def work() -> None:
        shift = BookJobSource(book, open_round(book))
        await shift.join()
        first, second = await shift.next(), await shift.next()
        assert first
        assert second
        keys = [(job.row, job.sample) for job in (first, second)]
        worker = shift.presence.id
        assert read_in_flight(book.path, worker) == set(keys)
        await shift.mark(first, failed(book, *keys[0]), False)  # it will be tried again
        assert read_in_flight(book.path, worker) == set(keys)
        await shift.mark(first, scored(book, *keys[0]), True)
        assert read_in_flight(book.path, worker) == {keys[1]}
        await shift.leave()
        assert read_in_flight(book.path, worker) == set()

    asyncio.run(work())


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


class Drained:
    """A worker that counts how often it is drained and stopped."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stats = WorkerStats(in_flight=3)

    def drain(self) -> None:
        self.calls.append("drain")

    def stop(self) -> None:
        self.calls.append("stop")


class Notes(SilentDisplay):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def test_the_first_signal_drains_and_the_second_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[tuple[Callable[[int], None], bool]] = []

    @contextmanager
    def keep(on_signal: Callable[[int], None], enabled: bool) -> Iterator[None]:
        handlers.append((on_signal, enabled))
        yield

    monkeypatch.setattr(module, "signal_handler", keep)
    worker, display = Drained(), Notes()
    with stop_on_signals(worker, display, True) as received:  # type: ignore[arg-type]
        ((on_signal, enabled),) = handlers
        assert (enabled, received) == (True, [])
        for number in (15, 2, 15):
            on_signal(number)
    assert (received, worker.calls) == ([15, 2, 15], ["drain", "stop", "stop"])
    assert display.lines == ["draining: 3 in flight; once more stops at once"]


def test_a_worker_drains_once_an_event_is_set() -> None:
    async def go(event: asyncio.Event | None, *, during: bool) -> list[str]:
        worker = Drained()
        with drain_on_event(worker, event):  # type: ignore[arg-type]
            await asyncio.sleep(0)
            if event and during:
                event.set()
            for _ in range(3):
                await asyncio.sleep(0)
        if event:
            event.set()
        await asyncio.sleep(0.01)
        assert "drain on event" not in {task.get_name() for task in asyncio.all_tasks()}
        return worker.calls

    assert asyncio.run(go(None, during=True)) == []
    assert asyncio.run(go(asyncio.Event(), during=True)) == ["drain"]
    assert asyncio.run(go(asyncio.Event(), during=False)) == []


def test_a_chunk_that_was_taken_over_is_not_reported_as_held(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=8, samples=2)
    round_, now = open_round(book), [0.0]

    async def part() -> None:
        shift = BookJobSource(book, round_, watch=WorkerMonitor(book.path, lambda: now[0], stale_s=180))
        await shift.join()
        job = await shift.next()
        assert job
        assert job.claim
        number = job.claim.chunk.number
        for now[0], taken in ((90.0, False), (181.0, True)):  # late only after half of what others wait
            if not taken:
                assert Leases(book.path, "heir", 1).claim(number, 2)
            await shift._renew_leases()
            shift._update_presence()
            assert (number in shift.presence.chunks) is not taken
        await shift.leave()

    asyncio.run(part())


def test_a_heartbeat_that_cannot_be_written_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = make_book(tmp_path / "run")
    round_ = open_round(book)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def part() -> None:
        shift = BookJobSource(book, round_)
        await shift.join()
        monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
        write = module.write_heartbeat
        monkeypatch.setattr(module, "write_heartbeat", refuse)
        while shift.error is None:
            await asyncio.sleep(0.01)
        with pytest.raises(BookUnwritable, match="No space left on device"):
            await shift.next()
        monkeypatch.setattr(module, "write_heartbeat", write)
        with suppress(BookUnwritable):
            await shift.leave()

    asyncio.run(asyncio.wait_for(part(), 30))


def test_a_seal_that_cannot_be_written_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def part() -> None:
        book = make_book(tmp_path / "run", tasks=1, samples=1)
        shift = BookJobSource(book, open_round(book))
        await shift.join()
        job = await shift.next()
        assert job
        monkeypatch.setattr(ChunkClaimer, "seal", refuse)
        await shift.mark(job, scored(book, job.row, job.sample), True)
        with pytest.raises(BookUnwritable, match="No space left on device"):
            await shift.next()
        await shift.leave()
        assert shift.error

    asyncio.run(asyncio.wait_for(part(), 30))


def test_cached_tokens_of_durable_rollouts_are_reported(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=4)
    round_ = open_round(book)

    async def part() -> tuple[int, int]:
        shift = BookJobSource(book, round_)
        await shift.join()
        for cached in (None, 2, 9, -1):
            job = await shift.next()
            assert job
            rollout = scored(book, job.row, job.sample)
            rollout.turns = [msgspec.structs.replace(rollout.turns[0], cached_tokens=cached)]
            await shift.mark(job, rollout, True)
        await shift.leave()
        return shift.presence.prompt_tokens, shift.presence.cached_tokens

    assert asyncio.run(part()) == (3 * 3, 2 + 3 + 0)


def test_who_leaves_right_after_its_last_key_has_sealed_the_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    round_ = open_round(book)
    seal = ChunkClaimer.seal

    def seal_slowly(self: ChunkClaimer, claims: list[tuple[Claim, Seal]]) -> None:
        time.sleep(0.1)
        seal(self, claims)

    monkeypatch.setattr(ChunkClaimer, "seal", seal_slowly)

    async def work() -> str:
        shift = BookJobSource(book, round_)
        await shift.join()
        job = await shift.next()
        assert job
        await shift.mark(job, scored(book, job.row, job.sample), True)
        await shift.leave()
        return shift.presence.id

    assert read_worker_gone(book.path, asyncio.run(work())) is None
    assert Seals(book.path).refresh()[0].scored == 1


def test_what_a_worker_has_in_flight_and_has_learned_is_in_its_heartbeats(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=2)
    round_ = open_round(book)
    model: Any = SimpleNamespace(wire_names={"max_tokens": "n"})

    async def work() -> None:
        shift = BookJobSource(book, round_, model=model)
        await shift.join()
        jobs = [await shift.next() for _ in range(2)]
        assert all(jobs)
        await shift._renew_leases()
        presence = read_presence(book.path, shift.presence.id)
        assert presence
        assert (presence.in_flight, presence.wire_names) == (2, {"max_tokens": "n"})
        assert presence.state == "working"
        assert jobs[0]
        await shift.mark(jobs[0], failed(book, jobs[0].row, jobs[0].sample), False)
        assert len(shift._slots) == 2  # it is tried again
        await shift.mark(jobs[0], scored(book, jobs[0].row, jobs[0].sample), True)
        assert len(shift._slots) == 1
        await shift.leave()
        presence = read_presence(book.path, shift.presence.id)
        assert presence
        assert (presence.in_flight, presence.state) == (0, "left")

    asyncio.run(work())


def test_failed_and_scored_keys_are_counted_in_the_seal(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=4)
    round_ = open_round(book)
    marked: list[int] = []

    async def work() -> None:
        shift = BookJobSource(book, round_, on_mark=lambda mark: marked.append(mark.rollout.sample))
        await shift.join()
        while job := await shift.next():
            make = failed if job.sample < 2 else scored
            await shift.mark(job, make(book, job.row, job.sample), True)
        await shift.leave()

    asyncio.run(work())
    seals = Seals(book.path).refresh().values()
    assert sum(seal.scored for seal in seals) == 2
    assert sum(seal.failed.get("model_timeout", 0) for seal in seals) == 2
    assert sorted(marked) == [0, 1, 2, 3]
