"""The worker of a job: it works on a run with a model that is already served, or with servers, own or shared."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.book import Book, is_finished
from rollbook.clusters.job_files import ServerSpec, SubmissionOrder
from rollbook.clusters.job_process import JobLog, count_written_bytes
from rollbook.clusters.servers.model_servers import (
    ServerEndpoint,
    run_while_alive,
    serve_models,
    wait_for_change,
    wait_for_endpoints,
)
from rollbook.core import JSON, ModelSpec, Settings
from rollbook.engine import (
    ProgressCounter,
    check_unchanged,
    open_run_model,
    resolve_planned_model,
    update_settings,
    work_on_book,
)
from rollbook.environments import check_same_judge, open_judge
from rollbook.errors import ChildFailed, EndpointDown, UsageError

MAX_SERVER_STARTS = 3


class NodeWorker:
    """One worker's duty at one run."""

    def __init__(self, run: Path, order: SubmissionOrder, log: JobLog) -> None:
        self._run, self._order, self._log = run, order, log
        self._book, self._at_work = Book(run), False
        for note in check_unchanged(self._book):
            log.note(note)

    async def work(self) -> str:
        """Work until nothing is left; gives the verdict that stopped it, if one did."""
        serve = self._order.serve
        if is_finished(self._book, self._book.rounds()):
            return ""  # a task that started late: no server is to be loaded for nothing
        if serve is None:
            return (await self._work_once([])).stop_reason
        return await (self._work_with_shared_servers(serve) if serve.shared else self._work_with_own_servers(serve))

    async def _work_once(self, urls: Sequence[str], enough: asyncio.Event | None = None) -> ProgressCounter:
        """Join the present round, work, leave."""
        book, base = self._book, self._book.rounds()[-1]
        changes: dict[str, JSON] = {"workers": 1} | ({"urls": list(urls)} if urls else {})
        settings = update_settings(base.settings, changes)
        spec = check_same_model(book, settings)
        async with (
            open_judge(book.manifest.judge, settings) as court,
            open_run_model(spec, settings, self._log) as model,
        ):
            assert model is not None
            round_ = msgspec.structs.replace(base, settings=settings)
            self._at_work = True
            try:
                return await work_on_book(
                    book, round_, model, self._log, judge=court, handle_signals=True, drain_event=enough
                )
            finally:
                self._at_work = False

    async def _work_with_own_servers(self, serve: ServerSpec) -> str:
        """Servers that live and die with this worker. One that dies ends its claims at once; then all begins anew."""
        start = 0
        while True:
            before = count_written_bytes(self._run)
            try:
                key = read_api_key(self._book)
                async with serve_models(self._run, self._order, serve, key, self._log.note) as fleet:
                    return (await run_while_alive(self._work_once(fleet.urls), fleet)).stop_reason
            except ChildFailed as error:
                start = 1 if count_written_bytes(self._run) > before else start + 1
                self._log.note(f"{error} (start {start} of at most {MAX_SERVER_STARTS})")
                if start == MAX_SERVER_STARTS:
                    raise

    async def _work_with_shared_servers(self, serve: ServerSpec) -> str:
        """Servers of other jobs. When others are there than before, a new stint begins with them."""
        losses = 0
        while True:
            known = await wait_for_endpoints(self._run, serve.ready_s)
            before = count_written_bytes(self._run)
            try:
                account = await self._work_until_servers_change(known)
            except EndpointDown as error:
                losses = 1 if count_written_bytes(self._run) > before else losses + 1
                self._log.note(f"{error} (lost {losses} of at most {MAX_SERVER_STARTS} times)")
                if losses == MAX_SERVER_STARTS:
                    raise
                continue
            if account is not None:
                return account.stop_reason
            self._log.note("other servers are there: going on with them")

    async def _work_until_servers_change(self, known: Mapping[str, ServerEndpoint]) -> ProgressCounter | None:
        """A stint with these servers; None where others came before all was done."""
        enough = asyncio.Event()
        stint = asyncio.create_task(self._work_once([endpoint.url for endpoint in known.values()], enough))
        others = asyncio.create_task(wait_for_change(self._run, set(known)))
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
            return stint.result() if stint.result().stop_reason else None
        finally:
            for task in (stint, others):
                task.cancel()
            await asyncio.gather(stint, others, return_exceptions=True)


def check_same_model(book: Book, settings: Settings) -> ModelSpec:
    """The run's own model; another one would be another run."""
    spec = resolve_planned_model(book.manifest.model, settings.urls)
    if spec != book.manifest.model:
        planned = f"{book.manifest.model.kind} {book.manifest.model.name}"
        raise UsageError(f"{book.path} was planned with the model {planned}: start a new run for another model")
    check_same_judge(book.manifest.judge, settings, book.path)
    return spec


def read_api_key(book: Book) -> str:
    """The key that servers may ask for."""
    return os.environ.get(book.rounds()[-1].settings.api_key_env, "").strip()
