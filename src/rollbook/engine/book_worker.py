"""One worker on one book: join, claim chunks, run their keys, write the journal, seal, send heartbeats, leave.

`BookJobSource` is the JobSource of a book, from joining to leaving. `work_on_book` opens everything a worker needs,
works until nothing is left, and closes everything.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from rollbook.agents import make_agent
from rollbook.book import (
    HEARTBEAT_S,
    REFRESH_S,
    Book,
    ChunkClaimer,
    Claim,
    InFlightKeys,
    Journal,
    JournalEntry,
    MediaStore,
    PeerMonitor,
    WorkerGone,
    WorkerMonitor,
    has_pending,
    make_presence,
    make_unwritable,
    next_heartbeat_s,
    publish_worker_gone,
    write_heartbeat,
)
from rollbook.core import EnvironmentSpec, Held, Limits, Manifest, Rollout, Round, Seal, Settings, has_own_data
from rollbook.engine.concurrency import make_limiter
from rollbook.engine.costs import estimate_cost, measure_costs
from rollbook.engine.progress import Display, ProgressCounter, count_pending
from rollbook.engine.retries import wait_for_event
from rollbook.engine.rollout_runner import RolloutRunner
from rollbook.engine.worker import RolloutJob, Worker, signal_handler
from rollbook.environments import Environment, EnvironmentRuntime, RoleClients, load_environment
from rollbook.errors import BookError, BookUnwritable, Stopped
from rollbook.models import Model, list_secrets

T = TypeVar("T")


class BookJobSource:
    """Claims chunks, hands out their keys, records results, seals complete chunks and sends heartbeats.

    What the `model` has learned about its endpoint is part of the heartbeats.
    """

    def __init__(
        self,
        book: Book,
        round_: Round,
        *,
        on_mark: Callable[[JournalEntry], None] = lambda _: None,
        on_claim: Callable[[Claim], None] = lambda _: None,
        watch: WorkerMonitor | None = None,
        model: Model | None = None,
    ) -> None:
        self._model = model
        self._book, self._round, self._on_mark, self._on_claim = book, round_, on_mark, on_claim
        self.presence = make_presence(round_.number, book.path)
        self._watch = watch or WorkerMonitor(book.path)
        self._claims = ChunkClaimer(book, round_, self.presence.id, self._watch, self._watch.clock)
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
        self._renewed_at = self._watch.clock()
        self._closed = False
        self._error: BaseException | None = None

    async def join(self) -> None:
        """Write the worker's first record: from now on its claims are valid."""
        await self._in_thread(write_heartbeat, self._book.path, self.presence)
        self._journal.start()
        self._heartbeat = asyncio.create_task(self._send_heartbeats(), name="heartbeat")

    async def leave(self) -> None:
        """Write what is left, seal what is complete, record the departure. A cancellation waits for that too.

        Heartbeats that continued would keep this worker's chunks for ever.
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
            async with self._heartbeat_lock:  # a heartbeat in its thread must not be written after the last record
                self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
        self._in_flight.close()
        self._slots.clear()
        self._update_presence()
        self.presence.state = "left"
        if not self.error:
            await self._in_thread(self._write_departure)

    def _write_departure(self) -> None:
        """Write the last record, and the chunks that are left for others."""
        self._claims.remove_claim_files()
        write_heartbeat(self._book.path, self.presence)
        unfinished = {number: claim.epoch for number, claim in self._open.items()}
        if unfinished:
            publish_worker_gone(self._book.path, self.presence.id, WorkerGone(self.presence.counter, unfinished))

    async def run_worker(self, worker: Worker, on_tick: Callable[[], None] | None = None) -> None:
        """Join, run a worker on these jobs, and leave however it ends; raise what made it impossible to continue."""
        await self.join()
        try:
            await worker.run(on_tick)
        finally:
            await self.leave()
        if self.error:
            raise self.error

    @property
    def error(self) -> BaseException | None:
        """The error that makes it impossible to continue with this book."""
        return self._error or self._journal.broken

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            raise make_unwritable(self._book.path, error) from None

    async def _send_heartbeats(self) -> None:
        joined = monotonic()
        while True:
            await asyncio.sleep(next_heartbeat_s(monotonic() - joined, HEARTBEAT_S))
            try:
                async with self._heartbeat_lock:
                    await self._renew_leases()
            except (BookError, BookUnwritable) as error:
                self._error = error
                self._changed.set()
                return

    def _is_late(self) -> bool:
        """Return whether others may soon take this worker for gone, or have done so."""
        return self._watch.clock() - self._renewed_at > self._watch.stale_s / 2

    async def _renew_leases(self) -> None:
        """Send a heartbeat; if it is late, drop the chunks that others took over while this worker was stopped.

        The heartbeat comes before the look: no worker that has seen it takes over more.
        """
        began, late = self._watch.clock(), self._is_late()
        self._update_presence()
        await self._in_thread(write_heartbeat, self._book.path, self.presence)
        await self._in_thread(self._peers.check)
        for number in await self._in_thread(self._find_lost_chunks) if late else ():
            self._drop_chunk(number)
        self._renewed_at = began

    def _update_presence(self) -> None:
        """Record the state of this worker's chunks for `status`; the last time too, since what is durable counts."""
        self.presence.in_flight = len(self._slots)
        if self._model is not None:
            self.presence.wire_names = dict(self._model.wire_names)
        self.presence.chunks = {n: Held(c.scored, dict(c.failed)) for n, c in list(self._open.items())}

    def _find_lost_chunks(self) -> list[int]:
        """Return chunks that others took over while this worker was stopped."""
        return [n for n, claim in list(self._open.items()) if self._claims.leases.is_lost(n, claim.epoch)]

    def _drop_chunk(self, number: int) -> None:
        self._open.pop(number, None)
        self._claims.release(number)
        self._jobs = deque(job for job in self._jobs if job.claim and job.claim.chunk.number != number)

    async def take_ready(self) -> RolloutJob | None:
        """Return a key that is ready to run, if any; after a pause, only of chunks that this worker still owns."""
        if self.error:
            raise self.error
        if self._jobs and self._is_late():
            async with self._heartbeat_lock:
                if self._is_late():
                    await self._renew_leases()
        return self._start_job(self._jobs.popleft()) if self._jobs else None

    async def next(self) -> RolloutJob | None:
        """Return the next key of an owned chunk or of a new one; wait while other workers may leave some."""
        while not self._closed:
            job = await self.take_ready()
            if job is not None:
                return job
            async with self._claim_lock:
                if self._jobs:
                    continue
                if await self.claim_chunk():
                    continue
                if self._is_over():
                    return None
                # one of our chunks may be sealed meanwhile; else it is time to look at other workers again
                self._changed.clear()
                await wait_for_event(self._changed, REFRESH_S)
        return None

    def _start_job(self, job: RolloutJob) -> RolloutJob:
        try:
            self._slots[job.row, job.sample] = self._in_flight.add(job.row, job.sample)
        except OSError as error:
            raise make_unwritable(self._book.path, error) from None
        return job

    async def claim_chunk(self) -> bool:
        """Claim one more chunk; return whether there was one."""
        claim = await self._in_thread(self._claims.claim_next)
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

    async def mark(self, job: RolloutJob, rollout: Rollout, final: bool) -> None:
        """Add an attempt to the journal."""
        if final:
            slot = self._slots.pop((job.row, job.sample), None)
            if slot is not None:
                self._in_flight.remove(slot)
        if has_own_data(rollout.messages):  # of a reply, a tool or a program: durable before the line that refers to it
            rollout.messages = list(await self._in_thread(self._book.media.store_answered, rollout.messages))
        await self._journal.add(JournalEntry(rollout, final, job.claim))

    def idle(self) -> None:
        """Flush the journal soon if no job is left: nothing else will join its group."""
        if not self._jobs:
            self._journal.flush_soon()

    def _on_durable(self, marks: list[JournalEntry]) -> None:
        """Count a group that is on the disk, and seal the chunks that it completes."""
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
            self._count_cached(mark.rollout)
            self._on_mark(mark)
        if complete:
            self._start_sealing(complete)

    def _count_cached(self, rollout: Rollout) -> None:
        for turn in rollout.turns:
            if turn.cached_tokens is not None:
                self.presence.prompt_tokens += turn.prompt_tokens
                self.presence.cached_tokens += max(0, min(turn.cached_tokens, turn.prompt_tokens))

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
        await self._in_thread(self._claims.seal, [(claim, self._make_seal(claim)) for claim in claims])
        for claim in claims:
            if self._open.get(claim.chunk.number) is claim:  # else it was dropped, and perhaps claimed again since
                del self._open[claim.chunk.number]

    def _make_seal(self, claim: Claim) -> Seal:
        files = claim.files | self._journal.extents(claim.since_segment)
        return Seal(self._round.number, claim.epoch, claim.scored, claim.failed, claim.dropped, files, claim.damaged)


MAX_ENVIRONMENT_PROCESSES = 8


@asynccontextmanager
async def open_environments(
    environments: Mapping[str, EnvironmentSpec],
    limits: Limits,
    *,
    run: Path | None,
    hosts: int | None,
    instances: Mapping[str, Environment] | None = None,
    roles: RoleClients | None = None,
    playing: bool = True,
    outage_s: float = Settings().outage_s,
) -> AsyncIterator[dict[str, EnvironmentRuntime]]:
    """Open the environments of a run for a context; `limits` are for those without their own.

    Without `playing`, only stored rollouts are verified, and no server is needed. `outage_s` is how long a server that
    an environment needs may be away.
    """
    waits = roles is not None and bool(roles.meaning.others)  # processes that wait for a model use no core
    usual = MAX_ENVIRONMENT_PROCESSES if waits else min(MAX_ENVIRONMENT_PROCESSES, os.cpu_count() or 1)
    max_processes = hosts or usual
    opened: dict[str, EnvironmentRuntime] = {}
    try:
        for name, spec in environments.items():
            instance = (instances or {}).get(name)
            make = partial(load_environment, spec, run) if instance is None else partial(lambda e: e, instance)
            log = run / "logs" / f"environment-{os.getpid()}.log" if run else None
            own = spec.terms.limits if spec.terms else limits
            runtime = EnvironmentRuntime(
                spec,
                own,
                environment=make,
                run=run,
                max_processes=max_processes,
                log=log,
                roles=roles,
                runs_rollouts=playing,
                outage_s=outage_s,
            )
            opened[name] = runtime
            await runtime.open()
        yield opened
    finally:
        closing = [runtime.close() for runtime in opened.values()]
        for error in filter(None, await asyncio.gather(*closing, return_exceptions=True)):
            raise error  # after all are closed


def make_runner(
    manifest: Manifest,
    model: Model,
    environments: Mapping[str, EnvironmentRuntime],
    settings: Settings,
    draining: asyncio.Event | None = None,
    media: MediaStore | None = None,
) -> RolloutRunner:
    """Return the runner for the rollouts of a run; its calls are not delayed once `draining` is set."""
    return RolloutRunner(
        model,
        environments,
        make_agent(manifest.agent, list_secrets(settings)),
        manifest.sampling,
        manifest.limits,
        manifest.seed,
        tool_format=manifest.tool_format,
        budgets=settings.attempts,
        continue_tokens=manifest.continue_tokens,
        draining=draining,
        media=media,
    )


async def work_on_book(
    book: Book,
    round_: Round,
    model: Model,
    display: Display,
    *,
    roles: RoleClients | None = None,
    handle_signals: bool = False,
    drain_event: asyncio.Event | None = None,
) -> ProgressCounter:
    """Work until nothing is left for this round, or `drain_event` is set; a signal raises `Stopped`."""
    settings, manifest = round_.settings, book.manifest
    limiter = make_limiter(settings.concurrency, display.note)
    counter = ProgressCounter(book, settings)
    jobs = BookJobSource(book, round_, on_mark=counter.record, on_claim=counter.add_claim, model=model)
    async with (
        measure_costs(book.path, settings, jobs.presence.id, estimate_cost(manifest, settings)) as costs,
        open_environments(
            manifest.environments,
            manifest.limits,
            run=book.path,
            hosts=settings.hosts,
            roles=roles,
            outage_s=settings.outage_s,
        ) as environments,
    ):
        draining = asyncio.Event()
        runner = make_runner(manifest, model, environments, settings, draining, book.media)

        def stop_waiting() -> None:
            model.stop_waiting()
            if roles is not None:
                roles.stop_waiting()
            for environment in environments.values():
                environment.stop_waiting()

        worker = Worker(
            jobs,
            runner,
            limiter,
            round_.number,
            settings.attempts,
            draining=draining,
            on_drain=stop_waiting,
            costs=costs if costs.is_priced else None,
            run_seed=manifest.seed,
        )
        display.start(counter.requested, await asyncio.to_thread(count_pending, book))

        def on_tick() -> None:
            jobs.presence.outage = outage = model.describe_outage() or (roles.describe_outage() if roles else "")
            display.update(counter.progress(worker, outage, costs.cost, jobs.presence))
            if counter.stop_reason:
                worker.stop()
            elif costs.stop_reason:
                worker.drain()  # what is in flight is paid for: it is finished and kept

        if costs.stop_reason:
            worker.drain()  # by earlier rounds: nothing is asked
        with stop_on_signals(worker, display, handle_signals) as stops, drain_on_event(worker, drain_event):
            try:
                await jobs.run_worker(worker, on_tick)
            finally:
                costs.read()
                display.update(counter.progress(worker, cost=costs.cost, presence=jobs.presence))
    counter.stop_reason = counter.stop_reason or costs.stop_reason
    if stops and not counter.stop_reason and await asyncio.to_thread(has_pending, book.path):
        raise Stopped(
            f"interrupted with {counter.requested - counter.scored} rollouts to go: rollbook resume {book.path}"
        )
    return counter


@contextmanager
def drain_on_event(worker: Worker, drain_event: asyncio.Event | None) -> Iterator[None]:
    """Let a worker take no new job once an event is set."""
    if drain_event is None:
        yield
        return
    waiting = asyncio.create_task(drain_event.wait(), name="drain on event")
    waiting.add_done_callback(lambda task: None if task.cancelled() else worker.drain())
    try:
        yield
    finally:
        waiting.cancel()


@contextmanager
def stop_on_signals(worker: Worker, display: Display, handle_signals: bool) -> Iterator[list[int]]:
    """Drain on the first signal, stop on the second; yields the list of signals received."""
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            display.note(f"draining: {worker.stats.in_flight} in flight; once more stops at once")
            worker.drain()
        else:
            worker.stop()

    with signal_handler(on_signal, handle_signals):
        yield received
