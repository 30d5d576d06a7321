"""What a worker's job does at a run: it works, with a model that is there already, or with servers, own or shared."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.book.claims import nothing_left
from rollbook.clusters.joblog import JobLog
from rollbook.clusters.order import Order, Serve
from rollbook.clusters.requeue import written
from rollbook.clusters.servers.endpoints import Endpoint
from rollbook.clusters.servers.fleet import guarded, serving
from rollbook.clusters.servers.sharing import changed, first_endpoints
from rollbook.collect.account import Account
from rollbook.collect.answering import planned_model
from rollbook.collect.judging import same_judge, sitting
from rollbook.collect.planning import check_unchanged
from rollbook.collect.run import opened, settings_of
from rollbook.collect.work import work_on
from rollbook.core.json import JSON
from rollbook.core.manifest import ModelSpec, Settings
from rollbook.errors import ChildFailed, EndpointDown, UsageError

SERVER_STARTS = 3


class Duty:
    """One worker's duty at one run."""

    def __init__(self, run: Path, order: Order, log: JobLog) -> None:
        self._run, self._order, self._log = run, order, log
        self._book, self._at_work = Book(run), False
        for note in check_unchanged(self._book):
            log.note(note)

    async def work(self) -> str:
        """Work until nothing is left; gives the verdict that stopped it, if one did."""
        serve = self._order.serve
        if nothing_left(self._book, self._book.rounds()):
            return ""  # a task that started late: no server is to be loaded for nothing
        if serve is None:
            return (await self._stint([])).verdict
        return await (self._with_shared(serve) if serve.shared else self._with_own(serve))

    async def _stint(self, urls: Sequence[str], enough: asyncio.Event | None = None) -> Account:
        """Join the present round, work, leave."""
        book, base = self._book, self._book.rounds()[-1]
        changes: dict[str, JSON] = {"workers": 1} | ({"urls": list(urls)} if urls else {})
        settings = settings_of(base.settings, changes)
        spec = same_model(book, settings)
        async with sitting(book.manifest.judge, settings) as court, opened(spec, settings, self._log) as model:
            assert model is not None
            round_ = msgspec.structs.replace(base, settings=settings)
            self._at_work = True
            try:
                return await work_on(book, round_, model, self._log, court=court, signals=True, enough=enough)
            finally:
                self._at_work = False

    async def _with_own(self, serve: Serve) -> str:
        """Servers that live and die with this worker. One that dies ends its claims at once; then all begins anew."""
        start = 0
        while True:
            before = written(self._run)
            try:
                key = key_of(self._book)
                async with serving(self._run, self._order, serve, key, self._log.note) as fleet:
                    return (await guarded(self._stint(fleet.urls), fleet)).verdict
            except ChildFailed as error:
                start = 1 if written(self._run) > before else start + 1
                self._log.note(f"{error} (start {start} of at most {SERVER_STARTS})")
                if start == SERVER_STARTS:
                    raise

    async def _with_shared(self, serve: Serve) -> str:
        """Servers of other jobs. When others are there than before, a new stint begins with them."""
        losses = 0
        while True:
            known = await first_endpoints(self._run, serve.ready_s)
            before = written(self._run)
            try:
                account = await self._until_others(known)
            except EndpointDown as error:
                losses = 1 if written(self._run) > before else losses + 1
                self._log.note(f"{error} (lost {losses} of at most {SERVER_STARTS} times)")
                if losses == SERVER_STARTS:
                    raise
                continue
            if account is not None:
                return account.verdict
            self._log.note("other servers are there: going on with them")

    async def _until_others(self, known: Mapping[str, Endpoint]) -> Account | None:
        """A stint with these servers; None where others came before all was done."""
        enough = asyncio.Event()
        stint = asyncio.create_task(self._stint([endpoint.url for endpoint in known.values()], enough))
        others = asyncio.create_task(changed(self._run, set(known)))
        try:
            await asyncio.wait({stint, others}, return_when=asyncio.FIRST_COMPLETED)
            if stint.done():
                return stint.result()
            enough.set()
            if not self._at_work:  # it waits for servers that are gone
                stint.cancel()
            await asyncio.wait({stint})
            if stint.cancelled() or isinstance(stint.exception(), EndpointDown):
                return None
            return stint.result() if stint.result().verdict else None
        finally:
            for task in (stint, others):
                task.cancel()
            await asyncio.gather(stint, others, return_exceptions=True)


def same_model(book: Book, settings: Settings) -> ModelSpec:
    """The run's own model; another one would be another run."""
    spec = planned_model(book.manifest.model, settings.urls)
    if spec != book.manifest.model:
        planned = f"{book.manifest.model.kind} {book.manifest.model.name}"
        raise UsageError(f"{book.path} was planned with the model {planned}: start a new run for another model")
    same_judge(book.manifest.judge, settings, book.path)
    return spec


def key_of(book: Book) -> str:
    """The key that servers may ask for."""
    return os.environ.get(book.rounds()[-1].settings.api_key_env, "").strip()
