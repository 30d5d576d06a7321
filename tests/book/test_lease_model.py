"""Workers that claim, seal, stop, wake, take over, leave and crash in any order, over the files of a real book.

Whatever happens: a seal never changes, no rollout of a sealed chunk is asked again, no rollout is lost, and `verify`
finds no damage.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rollbook.book import (
    Book,
    Claim,
    JournalEntry,
    Leases,
    WorkerGone,
    WorkerMonitor,
    publish_worker_gone,
    read_status,
    verify_run,
)
from rollbook.book import journal as journal_module
from rollbook.core import Round, Seal, decode
from rollbook.engine.book_worker import BookJobSource
from rollbook.engine.worker import RolloutJob
from rollbook.errors import BookError
from support.book_assertions import assert_complete, scored_keys
from support.books import failed, make_book, open_round, scored

MEMORY = Path("/dev/shm")
"""Where there is one, a file system without a disk: most of the time goes into fsync."""
STALE_S = 180.0
MAX_WORKERS = 4


class SteppedSource(BookJobSource):
    """A worker at a book that seals when it is told to."""

    def __init__(self, book: Book, round_: Round, clock: Callable[[], float]) -> None:
        self.written = asyncio.Event()
        super().__init__(book, round_, on_mark=self._note, watch=WorkerMonitor(book.path, clock, STALE_S))
        self.complete: list[Claim] = []

    def _note(self, _: JournalEntry) -> None:
        self.written.set()

    def _start_sealing(self, claims: list[Claim]) -> None:
        self.complete.extend(claims)

    async def seal(self) -> None:
        claims, self.complete = self.complete, []
        await self._write_seals(claims)

    async def beat(self) -> None:
        await self._renew_leases()

    async def write(self, job: RolloutJob, ok: bool) -> None:
        make = scored if ok else failed
        self.written.clear()
        await self.mark(job, make(self._book, job.row, job.sample, round_number=self._round.number), True)
        self._journal.flush_soon()
        await self.written.wait()

    def is_over(self) -> bool:
        return not self._open and self._claims.is_over()


class SimulatedWorker:
    """One worker with an event loop of its own: while that does not run, the worker is stopped."""

    def __init__(self, book: Book, round_: Round, clock: Callable[[], float]) -> None:
        self.round = round_.number
        self.loop = asyncio.new_event_loop()
        self.source = SteppedSource(book, round_, clock)
        self.in_flight: list[RolloutJob] = []
        self.stopped = False
        self.do(self.source.join())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def crash(self) -> None:
        """End without writing anything."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.do(asyncio.wait(tasks)) if tasks else None
        self.do(self.loop.shutdown_default_executor())
        self.loop.close()


class WorkersOfABook(RuleBasedStateMachine):
    """Draws what workers do next."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.book = make_book(self.folder / "run", tasks=2, samples=2)
        self.round = open_round(self.book)
        self.now = 0.0
        self.names = count()
        self.workers: dict[int, SimulatedWorker] = {}
        self.seals: dict[str, bytes] = {}
        self.damaged: dict[Path, bytes] = {}
        self.violated = False

    def running(self) -> list[int]:
        return [name for name, worker in self.workers.items() if not worker.stopped]

    def draw(self, data: st.DataObject, names: list[int]) -> tuple[int, SimulatedWorker]:
        name = data.draw(st.sampled_from(names))
        return name, self.workers[name]

    def guarded(self, name: int, work: Coroutine[Any, Any, Any]) -> Any:
        """Let a worker do something; a damaged file ends it, as it ends a process."""
        self.now += 1
        if name not in self.workers:
            work.close()
            return None
        try:
            return self.workers[name].do(work)
        except BookError as error:
            if not any(str(path) in str(error) for path in self.damaged):
                raise
            self.workers.pop(name).crash()
            return None

    def read_seal(self, chunk: int) -> Seal | None:
        """Read the seal that counts without the code under test: the one of the highest round."""
        found = [Seal(**decode(p.read_bytes())) for p in (self.book.path / "done").glob(f"{chunk:05}.*")]
        return max(found, key=lambda seal: seal.round, default=None)

    @initialize()
    def begin_with_two(self) -> None:
        self.join()
        self.join()

    @precondition(lambda self: len(self.workers) < MAX_WORKERS)
    @rule()
    def join(self) -> None:
        self.workers[next(self.names)] = SimulatedWorker(self.book, self.round, lambda: self.now)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        name, worker = self.draw(data, self.running())
        self.guarded(name, worker.source.claim_chunk())

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.begin_key(*self.draw(data, self.running()))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), keys=st.integers(1, 4))
    def work(self, data: st.DataObject, keys: int) -> None:
        """Let a worker go on for a while: claim if it has nothing to do, play some keys, seal."""
        name, worker = self.draw(data, self.running())
        for _ in range(keys):
            if not self.begin_key(name, worker):
                self.guarded(name, worker.source.claim_chunk())
            if worker.in_flight:
                self.guarded(name, worker.source.write(worker.in_flight.pop(0), True))
        self.guarded(name, worker.source.seal())

    def begin_key(self, name: int, worker: SimulatedWorker) -> bool:
        job = self.guarded(name, worker.source.take_ready())
        if job is None:
            return False
        seal = self.read_seal(job.claim.chunk.number)
        if seal is not None:
            self.restore_the_lease()  # which line counts cannot be read without it
            reopened = bool(seal.failed) and worker.round > seal.round
            self.check(reopened and not scored_keys(self.book.path)[job.task.id, job.sample], "asked again")
        worker.in_flight.append(job)
        return True

    @precondition(lambda self: any(self.workers[name].in_flight for name in self.running()))
    @rule(data=st.data(), ok=st.integers(0, 3).map(bool))
    def finish(self, data: st.DataObject, ok: bool) -> None:
        name, worker = self.draw(data, [name for name in self.running() if self.workers[name].in_flight])
        self.guarded(name, worker.source.write(worker.in_flight.pop(0), ok))

    @precondition(lambda self: any(self.workers[name].source.complete for name in self.running()))
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        name, worker = self.draw(data, [name for name in self.running() if self.workers[name].source.complete])
        self.guarded(name, worker.source.seal())

    @precondition(lambda self: self.running())
    @rule(data=st.data(), minutes=st.integers(0, 5))
    def stop(self, data: st.DataObject, minutes: int) -> None:
        self.draw(data, self.running())[1].stopped = True
        self.pass_time(minutes)

    @precondition(lambda self: len(self.running()) < len(self.workers))
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        self.draw(data, [name for name, worker in self.workers.items() if worker.stopped])[1].stopped = False

    @rule(minutes=st.integers(1, 5))
    def pass_time(self, minutes: int) -> None:
        for _ in range(minutes):
            self.now += 60
            for name in self.running():
                self.guarded(name, self.workers[name].source.beat())

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name, worker = self.draw(data, self.running())
        self.guarded(name, worker.source.leave())
        if self.workers.pop(name, None):
            worker.crash()

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        name, worker = self.draw(data, list(self.workers))
        del self.workers[name]
        worker.crash()

    @precondition(lambda self: self.round.number < 3)
    @rule()
    def open_round(self) -> None:
        self.round = open_round(self.book)

    @precondition(lambda self: not self.damaged)
    @rule(data=st.data())
    def damage_a_lease(self, data: st.DataObject) -> None:
        leases = sorted((self.book.path / "leases").glob("[0-9]*"))
        if leases:
            path = leases[data.draw(st.integers(0, len(leases) - 1))]
            self.damaged[path] = path.read_bytes()
            path.unlink()  # leases of one worker share one file
            path.write_bytes(data.draw(st.sampled_from([b"", b"\xff\xfe{", b"\0" * 40, b'{"worker":'])))

    @precondition(lambda self: self.damaged)
    @rule()
    def restore_the_lease(self) -> None:
        for path, content in self.damaged.items():
            path.write_bytes(content)
        self.damaged.clear()

    @precondition(lambda self: self.seals)
    @rule(data=st.data())
    def claim_a_sealed_chunk_in_the_name_of_nobody(self, data: st.DataObject) -> None:
        """Leave a lease and a record of a dead worker, as files from another time or a bug might."""
        chunk = int(data.draw(st.sampled_from(sorted(self.seals)))[:5])
        nobody = f"nobody-{next(self.names)}"
        leases = Leases(self.book.path, nobody, self.round.number)
        epoch = leases.refresh()[chunk] + 1
        leases.claim(chunk, epoch)
        publish_worker_gone(self.book.path, nobody, WorkerGone(-1, {chunk: epoch}))

    def check(self, holds: bool, violation: str) -> None:
        self.violated |= not holds
        assert holds, violation

    @invariant()
    def seals_never_change(self) -> None:
        now = {path.name: path.read_bytes() for path in (self.book.path / "done").iterdir()}
        self.check(now | self.seals == now, "a seal changed")
        self.seals = now

    def teardown(self) -> None:
        try:
            for worker in self.workers.values():
                worker.crash()
            if not self.violated:
                self.restore_the_lease()
                self.finish_the_run()
        finally:
            shutil.rmtree(self.folder)

    def finish_the_run(self) -> None:
        """Nothing is lost: one more worker completes the run, and asks only what has no score."""
        known = scored_keys(self.book.path)
        self.open_round()
        self.workers = {0: SimulatedWorker(self.book, self.round, lambda: self.now)}
        source = self.workers[0].source
        while not source.is_over():
            self.pass_time(1)
            while self.workers[0].do(source.claim_chunk()):
                while job := self.workers[0].do(source.take_ready()):
                    assert not known[job.task.id, job.sample], "a rollout that counted was asked again"
                    self.workers[0].do(source.write(job, True))
                self.workers[0].do(source.seal())
            self.seals_never_change()
        self.workers[0].do(source.leave())
        self.workers[0].crash()
        assert_complete(self.book.path)
        assert read_status(self.book.path).scored == self.book.plan.requested
        assert verify_run(self.book.path).damage == []


def test_no_order_of_events_changes_a_seal_or_loses_or_repeats_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMMIT_S", 0.0)
    names = count()
    monkeypatch.setattr(secrets, "token_hex", lambda _: f"{next(names):08x}")  # workers are ordered by their names
    run_state_machine_as_test(WorkersOfABook, settings=settings(max_examples=150, stateful_step_count=40))
