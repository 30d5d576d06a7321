"""A shift: one worker's time at a book, from joining to leaving. It is the desk that jobs of a book come from."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from rollbook.book.book import Book
from rollbook.book.claims import LOOK_S, Claim, Claims
from rollbook.book.journal import Journal, Mark
from rollbook.book.neighbours import Neighbours
from rollbook.book.obituary import Obituary, publish_obituary
from rollbook.book.presence import HEARTBEAT_S, Watch, beat_s, new_presence, write_presence
from rollbook.book.seal import write_seals
from rollbook.book.seats import Seats
from rollbook.collect.job import Job
from rollbook.core.manifest import Round
from rollbook.core.presence import Held
from rollbook.core.rollout import Rollout
from rollbook.core.seal import Seal
from rollbook.errors import BookError, BookUnwritable

T = TypeVar("T")


class Shift:
    """Claims chunks, hands out their keys, writes the marks, seals what is complete, and beats its heart."""

    def __init__(
        self,
        book: Book,
        round_: Round,
        *,
        listener: Callable[[Mark], None] = lambda _: None,
        inherited: Callable[[Claim], None] = lambda _: None,
        watch: Watch | None = None,
    ) -> None:
        self._book, self._round, self._listener, self._inherited = book, round_, listener, inherited
        self.presence = new_presence(round_.number, book.path)
        self._watch = watch or Watch(book.path)
        self._claims = Claims(book, round_, self.presence.id, self._watch)
        self._neighbours = Neighbours(book.path, self.presence.id, self._watch)
        self._journal = Journal(book.path, self.presence.id, self._durable)
        self._seats = Seats(book.path, self.presence.id)
        self._taken: dict[tuple[int, int], int] = {}
        self._jobs: deque[Job] = deque()
        self._open: dict[int, Claim] = {}
        self._claiming, self._beating = asyncio.Lock(), asyncio.Lock()
        self._changed = asyncio.Event()
        self._sealing: set[asyncio.Task[None]] = set()
        self._heart: asyncio.Task[None] | None = None
        self._closed = False
        self._trouble: BaseException | None = None

    async def join(self) -> None:
        """Show up: from now on the claims of this worker hold."""
        await self._at_disk(write_presence, self._book.path, self.presence)
        self._journal.start()
        self._heart = asyncio.create_task(self._beat(), name="heartbeat")

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
        if self._heart:
            async with self._beating:  # a beat that is under way in its thread must not come after the last word
                self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        self._seats.close()
        self._taken.clear()
        self._describe()
        self.presence.state = "left"
        if not self.trouble:
            await self._at_disk(self._part)

    def _part(self) -> None:
        """The last word, and what is left for others to do."""
        write_presence(self._book.path, self.presence)
        left = {number: claim.epoch for number, claim in self._open.items()}
        if left:
            publish_obituary(self._book.path, self.presence.id, Obituary(self.presence.counter, left))

    @property
    def trouble(self) -> BaseException | None:
        """What makes it impossible to go on with this book."""
        return self._trouble or self._journal.broken

    async def _at_disk(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            raise unwritable(self._book, error) from None

    async def _beat(self) -> None:
        joined = beaten = monotonic()
        while True:
            await asyncio.sleep(beat_s(monotonic() - joined, HEARTBEAT_S))
            try:
                async with self._beating:
                    await self._beat_once()
                    late, beaten = monotonic() - beaten > self._watch.stale_s / 2, monotonic()
                    for number in await self._at_disk(self._lost) if late else ():
                        self._forget(number)
            except (BookError, BookUnwritable) as error:
                self._trouble = error
                self._changed.set()
                return

    async def _beat_once(self) -> None:
        self._describe()
        await self._at_disk(write_presence, self._book.path, self.presence)
        await self._at_disk(self._neighbours.look)

    def _describe(self) -> None:
        """What `status` is to know of the chunks in our hands; also the last word, since what is durable counts."""
        self.presence.in_flight = len(self._taken)
        self.presence.chunks = {n: Held(c.scored, dict(c.failed)) for n, c in list(self._open.items())}

    def _lost(self) -> list[int]:
        """Chunks that were taken over while we were stopped: no longer ours."""
        return [n for n, claim in list(self._open.items()) if self._claims.leases.lost(n, claim.epoch)]

    def _forget(self, number: int) -> None:
        self._open.pop(number, None)
        self._claims.release(number)
        self._jobs = deque(job for job in self._jobs if job.claim and job.claim.chunk.number != number)

    def ready(self) -> Job | None:
        """A key that is at hand, if any."""
        if self.trouble:
            raise self.trouble
        return self._begin(self._jobs.popleft()) if self._jobs else None

    async def next(self) -> Job | None:
        """The next key of a chunk we hold; a new chunk when there is none; waits while others may leave some."""
        while not self._closed:
            job = self.ready()
            if job is not None:
                return job
            async with self._claiming:
                if self._jobs:
                    continue
                if not await self.claim() and (self._over() or not await self._wait()):
                    return None
        return None

    def _begin(self, job: Job) -> Job:
        try:
            self._taken[job.row, job.sample] = self._seats.take(job.row, job.sample)
        except OSError as error:
            raise unwritable(self._book, error) from None
        return job

    async def claim(self) -> bool:
        """Take one more chunk into hand."""
        try:
            claim = await asyncio.to_thread(self._claims.next)
        except OSError as error:
            raise unwritable(self._book, error) from None
        if claim is None:
            return False
        self._inherited(claim)
        claim.since_segment = self._journal.segment
        self._open[claim.chunk.number] = claim
        tasks = self._book.tasks.block(row for row, _, _ in claim.todo)
        self._jobs.extend(Job(tasks[row], sample, past, claim, row) for row, sample, past in claim.todo)
        claim.todo = []
        if not claim.left:
            self._seal([claim])
        return True

    def _over(self) -> bool:
        return not self._open and not self._sealing and self._claims.over()

    async def _wait(self) -> bool:
        """Until something of ours is sealed, or it is time to look at the others again."""
        self._changed.clear()
        try:
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()
        except TimeoutError:
            pass
        return True

    async def mark(self, job: Job, rollout: Rollout, final: bool) -> None:
        """Hand a mark to the journal."""
        if final:
            seat = self._taken.pop((job.row, job.sample), None)
            if seat is not None:
                self._seats.leave(seat)
        await self._journal.add(Mark(rollout, final, job.claim))

    def idle(self) -> None:
        """Nothing else is coming: what is written need not wait for company."""
        if not self._jobs:
            self._journal.hurry()

    def _durable(self, marks: list[Mark]) -> None:
        """A group is on the disk: count it, and seal the chunks it completes."""
        complete = []
        for mark in marks:
            claim = mark.claim
            if mark.final and claim is not None:
                claim.left -= 1
                if mark.rollout.failure:
                    kind = mark.rollout.failure.kind
                    claim.failed[kind] = claim.failed.get(kind, 0) + 1
                else:
                    claim.scored += 1
                if not claim.left and claim.chunk.number in self._open:
                    complete.append(claim)
            self._listener(mark)
        if complete:
            self._seal(complete)

    def _seal(self, claims: list[Claim]) -> None:
        task = asyncio.create_task(self._write_seals(claims), name="seal")
        self._sealing.add(task)
        task.add_done_callback(self._sealed)

    def _sealed(self, task: asyncio.Task[None]) -> None:
        self._sealing.discard(task)
        if not task.cancelled() and task.exception():
            self._trouble = task.exception()
        self._changed.set()

    async def _write_seals(self, claims: list[Claim]) -> None:
        seals = {}
        for claim in claims:
            number = claim.chunk.number
            files = claim.files | self._journal.extents(claim.since_segment)
            seal = Seal(self._round.number, claim.epoch, claim.scored, claim.failed, claim.dropped, files)
            if not self._claims.leases.lost(number, claim.epoch):
                seals[number] = (seal, claim.resealed)
        await self._at_disk(write_seals, self._book.path, seals)
        for claim in claims:
            number = claim.chunk.number
            if number in seals:
                self._claims.sealed(number, seals[number][0])
            else:
                self._claims.release(number)
            self._open.pop(number, None)


def unwritable(book: Book, error: OSError) -> BookUnwritable:
    """The one line for a run directory that takes no more."""
    return BookUnwritable(f"{book.path} cannot be written ({error.strerror or error}): make room, then resume")
