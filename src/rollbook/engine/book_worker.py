"""One worker on one book: join, claim chunks, run their keys, write the journal, seal, send heartbeats, leave.

`BookJobSource` is the JobSource of a book, from joining to leaving. `work_on_book` opens everything a worker needs,
works until nothing is left, and closes everything.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from rollbook.agents import make_program
from rollbook.book import (
    HEARTBEAT_S,
    REFRESH_S,
    Book,
    ChunkClaimer,
    Claim,
    InFlightKeys,
    Journal,
    JournalEntry,
    PeerMonitor,
    WorkerGone,
    WorkerMonitor,
    make_presence,
    next_heartbeat_s,
    publish_worker_gone,
    write_heartbeat,
    write_seals,
)
from rollbook.core import EnvironmentSpec, Held, Limits, Manifest, Rollout, Round, Seal, Settings
from rollbook.engine.progress import Display, ProgressCounter
from rollbook.engine.rollout_runner import RolloutRunner
from rollbook.engine.worker import RolloutJob, Worker, make_limiter
from rollbook.environments import Environment, EnvironmentRuntime, JudgeClient, load_environment
from rollbook.errors import BookError, BookUnwritable, Stopped
from rollbook.models import Model

T = TypeVar("T")


class BookJobSource:
    """Claims chunks, hands out their keys, writes the marks, seals what is complete, and beats its heart."""

    def __init__(
        self,
        book: Book,
        round_: Round,
        *,
        on_mark: Callable[[JournalEntry], None] = lambda _: None,
        on_claim: Callable[[Claim], None] = lambda _: None,
        watch: WorkerMonitor | None = None,
    ) -> None:
        self._book, self._round, self._on_mark, self._on_claim = book, round_, on_mark, on_claim
        self.presence = make_presence(round_.number, book.path)
        self._watch = watch or WorkerMonitor(book.path)
        self._claims = ChunkClaimer(book, round_, self.presence.id, self._watch)
        self._peers = PeerMonitor(book.path, self.presence.id, self._watch)
        self._journal = Journal(book.path, self.presence.id, self._on_durable)
        self._in_flight = InFlightKeys(book.path, self.presence.id)
        self._slots: dict[tuple[int, int], int] = {}
        self._jobs: deque[RolloutJob] = deque()
        self._open: dict[int, Claim] = {}
        self._claim_lock, self._heartbeat_lock = asyncio.Lock(), asyncio.Lock()
        self._changed = asyncio.Event()
        self._sealing: set[asyncio.Task[None]] = set()
        self._heartbeat: asyncio.Task[None] | None = None
        self._closed = False
        self._error: BaseException | None = None

    async def join(self) -> None:
        """Show up: from now on the claims of this worker hold."""
        await self._in_thread(write_heartbeat, self._book.path, self.presence)
        self._journal.start()
        self._heartbeat = asyncio.create_task(self._send_heartbeats(), name="heartbeat")

    async def leave(self) -> None:
        """Write what is left, seal what is complete, and say that we are gone; whoever is cancelled waits for that too.

        A heart that went on beating would hold our chunks for ever.
        """
        leaving = asyncio.create_task(self._leave(), name="leaving")
        cancelled: asyncio.CancelledError | None = None
        while not leaving.done():
            try:
                await asyncio.wait({leaving})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled:
            raise cancelled
        leaving.result()

    async def _leave(self) -> None:
        self._closed = True
        self._changed.set()
        await self._journal.close()
        await asyncio.gather(*self._sealing, return_exceptions=True)
        if self._heartbeat:
            async with self._heartbeat_lock:  # a beat that is under way in its thread must not come after the last word
                self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
        self._in_flight.close()
        self._slots.clear()
        self._update_presence()
        self.presence.state = "left"
        if not self.error:
            await self._in_thread(self._write_departure)

    def _write_departure(self) -> None:
        """The last word, and what is left for others to do."""
        write_heartbeat(self._book.path, self.presence)
        left = {number: claim.epoch for number, claim in self._open.items()}
        if left:
            publish_worker_gone(self._book.path, self.presence.id, WorkerGone(self.presence.counter, left))

    @property
    def error(self) -> BaseException | None:
        """What makes it impossible to go on with this book."""
        return self._error or self._journal.broken

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            raise unwritable_error(self._book, error) from None

    async def _send_heartbeats(self) -> None:
        joined = beaten = monotonic()
        while True:
            await asyncio.sleep(next_heartbeat_s(monotonic() - joined, HEARTBEAT_S))
            try:
                async with self._heartbeat_lock:
                    await self._send_heartbeat()
                    late, beaten = monotonic() - beaten > self._watch.stale_s / 2, monotonic()
                    for number in await self._in_thread(self._find_lost_chunks) if late else ():
                        self._drop_chunk(number)
            except (BookError, BookUnwritable) as error:
                self._error = error
                self._changed.set()
                return

    async def _send_heartbeat(self) -> None:
        self._update_presence()
        await self._in_thread(write_heartbeat, self._book.path, self.presence)
        await self._in_thread(self._peers.check)

    def _update_presence(self) -> None:
        """What `status` is to know of the chunks in our hands; also the last word, since what is durable counts."""
        self.presence.in_flight = len(self._slots)
        self.presence.chunks = {n: Held(c.scored, dict(c.failed)) for n, c in list(self._open.items())}

    def _find_lost_chunks(self) -> list[int]:
        """Chunks that were taken over while we were stopped: no longer ours."""
        return [n for n, claim in list(self._open.items()) if self._claims.leases.is_lost(n, claim.epoch)]

    def _drop_chunk(self, number: int) -> None:
        self._open.pop(number, None)
        self._claims.release(number)
        self._jobs = deque(job for job in self._jobs if job.claim and job.claim.chunk.number != number)

    def take_ready(self) -> RolloutJob | None:
        """A key that is at hand, if any."""
        if self.error:
            raise self.error
        return self._start_job(self._jobs.popleft()) if self._jobs else None

    async def next(self) -> RolloutJob | None:
        """The next key of a chunk we hold; a new chunk when there is none; waits while others may leave some."""
        while not self._closed:
            job = self.take_ready()
            if job is not None:
                return job
            async with self._claim_lock:
                if self._jobs:
                    continue
                if not await self.claim_chunk() and (self._is_over() or not await self._wait_for_change()):
                    return None
        return None

    def _start_job(self, job: RolloutJob) -> RolloutJob:
        try:
            self._slots[job.row, job.sample] = self._in_flight.add(job.row, job.sample)
        except OSError as error:
            raise unwritable_error(self._book, error) from None
        return job

    async def claim_chunk(self) -> bool:
        """Take one more chunk into hand."""
        try:
            claim = await asyncio.to_thread(self._claims.claim_next)
        except OSError as error:
            raise unwritable_error(self._book, error) from None
        if claim is None:
            return False
        self._on_claim(claim)
        claim.since_segment = self._journal.segment
        self._open[claim.chunk.number] = claim
        tasks = self._book.tasks.read_many(row for row, _, _ in claim.todo)
        self._jobs.extend(RolloutJob(tasks[row], sample, past, claim, row) for row, sample, past in claim.todo)
        claim.todo = []
        if not claim.keys_left:
            self._start_sealing([claim])
        return True

    def _is_over(self) -> bool:
        return not self._open and not self._sealing and self._claims.is_over()

    async def _wait_for_change(self) -> bool:
        """Until something of ours is sealed, or it is time to look at the others again."""
        self._changed.clear()
        try:
            async with asyncio.timeout(REFRESH_S):
                await self._changed.wait()
        except TimeoutError:
            pass
        return True

    async def mark(self, job: RolloutJob, rollout: Rollout, final: bool) -> None:
        """Hand a mark to the journal."""
        if final:
            seat = self._slots.pop((job.row, job.sample), None)
            if seat is not None:
                self._in_flight.remove(seat)
        await self._journal.add(JournalEntry(rollout, final, job.claim))

    def idle(self) -> None:
        """Nothing else is coming: what is written need not wait for company."""
        if not self._jobs:
            self._journal.flush_soon()

    def _on_durable(self, marks: list[JournalEntry]) -> None:
        """A group is on the disk: count it, and seal the chunks it completes."""
        complete = []
        for mark in marks:
            claim = mark.claim
            if mark.final and claim is not None:
                claim.keys_left -= 1
                if mark.rollout.failure:
                    kind = mark.rollout.failure.kind
                    claim.failed[kind] = claim.failed.get(kind, 0) + 1
                else:
                    claim.scored += 1
                if not claim.keys_left and claim.chunk.number in self._open:
                    complete.append(claim)
            self._on_mark(mark)
        if complete:
            self._start_sealing(complete)

    def _start_sealing(self, claims: list[Claim]) -> None:
        task = asyncio.create_task(self._write_seals(claims), name="seal")
        self._sealing.add(task)
        task.add_done_callback(self._on_sealed)

    def _on_sealed(self, task: asyncio.Task[None]) -> None:
        self._sealing.discard(task)
        if not task.cancelled() and task.exception():
            self._error = task.exception()
        self._changed.set()

    async def _write_seals(self, claims: list[Claim]) -> None:
        seals = {}
        for claim in claims:
            number = claim.chunk.number
            files = claim.files | self._journal.extents(claim.since_segment)
            seal = Seal(self._round.number, claim.epoch, claim.scored, claim.failed, claim.dropped, files)
            if not self._claims.leases.is_lost(number, claim.epoch):
                seals[number] = (seal, claim.resealed)
        await self._in_thread(write_seals, self._book.path, seals)
        for claim in claims:
            number = claim.chunk.number
            if number in seals:
                self._claims.record_seal(number, seals[number][0])
            else:
                self._claims.release(number)
            self._open.pop(number, None)


def unwritable_error(book: Book, error: OSError) -> BookUnwritable:
    """The one line for a run directory that takes no more."""
    return BookUnwritable(f"{book.path} cannot be written ({error.strerror or error}): make room, then resume")


MAX_ENVIRONMENT_PROCESSES = 8


@asynccontextmanager
async def open_environments(
    environments: Mapping[str, EnvironmentSpec],
    limits: Limits,
    *,
    run: Path | None,
    hosts: int | None,
    instances: Mapping[str, Environment] | None = None,
    judge: JudgeClient | None = None,
    playing: bool = True,
) -> AsyncIterator[dict[str, EnvironmentRuntime]]:
    """The environments of a run, open for as long as the context is; `limits` are for those without their own.

    Where nothing is `playing`, and only stored rollouts are verified, no server is needed.
    """
    most = hosts or min(MAX_ENVIRONMENT_PROCESSES, os.cpu_count() or 1)
    opened: dict[str, EnvironmentRuntime] = {}
    try:
        for name, spec in environments.items():
            held = (instances or {}).get(name)
            make = partial(load_environment, spec, run) if held is None else partial(lambda e: e, held)
            log = run / "logs" / f"environment-{os.getpid()}.log" if run else None
            own = spec.terms.limits if spec.terms else limits
            stage = EnvironmentRuntime(
                spec, own, environment=make, run=run, max_processes=most, log=log, judge=judge, runs_rollouts=playing
            )
            opened[name] = stage
            await stage.open()
        yield opened
    finally:
        closing = [stage.close() for stage in opened.values()]
        for error in filter(None, await asyncio.gather(*closing, return_exceptions=True)):
            raise error  # now that no other is cut short by it


def make_runner(
    manifest: Manifest, model: Model, environments: Mapping[str, EnvironmentRuntime], settings: Settings
) -> RolloutRunner:
    """What plays the rollouts of a run."""
    return RolloutRunner(
        model,
        environments,
        make_program(manifest.agent, {settings.api_key_env, settings.judge_key_env}),
        manifest.sampling,
        manifest.limits,
        manifest.seed,
        tool_format=manifest.tool_format,
        budgets=settings.attempts,
        continue_tokens=manifest.continue_tokens,
    )


async def work_on_book(
    book: Book,
    round_: Round,
    model: Model,
    display: Display,
    *,
    judge: JudgeClient | None = None,
    handle_signals: bool = False,
    drain_event: asyncio.Event | None = None,
) -> ProgressCounter:
    """Fill a book until nothing is left for this round, or `drain_event` is set; a stop by signal is `Stopped`."""
    settings, manifest = round_.settings, book.manifest
    limiter = make_limiter(settings.concurrency, display.note)
    account = ProgressCounter(book, settings)
    shift = BookJobSource(book, round_, on_mark=account.record, on_claim=account.add_claim)
    open_stages = open_environments(
        manifest.environments, manifest.limits, run=book.path, hosts=settings.hosts, judge=judge
    )
    async with open_stages as on:
        worker = Worker(shift, make_runner(manifest, model, on, settings), limiter, round_.number, settings.attempts)
        display.start(account.requested)

        def glance() -> None:
            display.update(account.progress(worker))
            if account.stop_reason:
                worker.stop()

        with stop_on_signals(worker, display, handle_signals) as stops, drain_on_event(worker, drain_event):
            await shift.join()
            try:
                await worker.run(glance)
            finally:
                await shift.leave()
                display.update(account.progress(worker))
    if shift.error:
        raise shift.error
    if stops and not account.stop_reason:
        raise Stopped(
            f"interrupted with {account.requested - account.scored} rollouts to go: rollbook resume {book.path}"
        )
    return account


@contextmanager
def drain_on_event(worker: Worker, drain_event: asyncio.Event | None) -> Iterator[None]:
    """Have a worker take nothing new from an event on."""
    if drain_event is None:
        yield
        return
    waiting = asyncio.create_task(drain_event.wait(), name="enough")
    waiting.add_done_callback(lambda task: None if task.cancelled() else worker.drain())
    try:
        yield
    finally:
        waiting.cancel()


@contextmanager
def stop_on_signals(worker: Worker, display: Display, handle_signals: bool) -> Iterator[list[int]]:
    """The first signal drains, a second stops; gives the list of signals that came."""
    came: list[int] = []
    if not handle_signals:
        yield came
        return

    def on_signal(number: int) -> None:
        came.append(number)
        if len(came) == 1:
            display.note(f"draining: {worker.stats.in_flight} in flight; once more stops at once")
            worker.drain()
        else:
            worker.stop()

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield came
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)  # what is closed afterwards may take a while, and can be interrupted too
