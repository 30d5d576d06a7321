"""The worker of a job: it works on a run with a model that is already served, or with its own or shared servers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.book import Book, is_finished
from rollbook.clusters.job_files import SubmissionOrder
from rollbook.clusters.job_process import JobLog, count_written_bytes
from rollbook.clusters.servers.model_servers import (
    ServerEndpoint,
    run_while_alive,
    serve_models,
    wait_for_change,
    wait_for_endpoints,
)
from rollbook.core import JSON, ServerSpec
from rollbook.engine import (
    ProgressCounter,
    check_run_model,
    check_unchanged,
    open_run_model,
    update_settings,
    work_on_book,
)
from rollbook.environments import open_judge
from rollbook.errors import ChildFailed, EndpointDown

MAX_SERVER_STARTS = 3


class NodeWorker:
    """One worker of one run."""

    def __init__(self, run: Path, order: SubmissionOrder, log: JobLog) -> None:
        self._run, self._order, self._log = run, order, log
        self._book, self._at_work = Book(run), False
        for note in check_unchanged(self._book):
            log.note(note)

    async def work(self) -> str:
        """Work until nothing is left; return the reason if it was stopped before."""
        serve = self._order.serve
        if is_finished(self._book, self._book.rounds()):
            return ""  # a task that started late: no server has to be loaded for nothing
        if serve is None:
            return (await self._work_once([])).stop_reason
        return await (self._work_with_shared_servers(serve) if serve.shared else self._work_with_own_servers(serve))

    async def _work_once(self, urls: Sequence[str], drain: asyncio.Event | None = None) -> ProgressCounter:
        """Work on the present round with these servers, or with the model that the run names."""
        book, base = self._book, self._book.rounds()[-1]
        changes: dict[str, JSON] = {"workers": 1} | ({"urls": list(urls)} if urls else {})
        settings = update_settings(base.settings, changes)
        spec = check_run_model(book, settings)
        async with (
            open_judge(book.manifest.judge, settings) as judge,
            open_run_model(spec, settings, self._log) as model,
        ):
            assert model is not None
            round_ = msgspec.structs.replace(base, settings=settings)
            self._at_work = True
            try:
                return await work_on_book(
                    book, round_, model, self._log, judge=judge, handle_signals=True, drain_event=drain
                )
            finally:
                self._at_work = False

    async def _work_with_own_servers(self, serve: ServerSpec) -> str:
        """Work with servers that this worker starts. One that dies ends its claims at once; then all are restarted."""
        start = 0
        while True:
            before = count_written_bytes(self._run)
            try:
                key = read_api_key(self._book)
                async with serve_models(self._run, self._order, serve, key, self._log.note) as servers:
                    return (await run_while_alive(self._work_once(servers.urls), servers)).stop_reason
            except ChildFailed as error:
                start = 1 if count_written_bytes(self._run) > before else start + 1
                self._log.note(f"{error} (start {start} of at most {MAX_SERVER_STARTS})")
                if start == MAX_SERVER_STARTS:
                    raise

    async def _work_with_shared_servers(self, serve: ServerSpec) -> str:
        """Work with servers of other jobs. When these change, the worker drains and goes on with the new ones."""
        losses = 0
        while True:
            known = await wait_for_endpoints(self._run, serve.ready_s)
            before = count_written_bytes(self._run)
            try:
                progress = await self._work_until_servers_change(known)
            except EndpointDown as error:
                losses = 1 if count_written_bytes(self._run) > before else losses + 1
                self._log.note(f"{error} (lost {losses} of at most {MAX_SERVER_STARTS} times)")
                if losses == MAX_SERVER_STARTS:
                    raise
                continue
            if progress is not None:
                return progress.stop_reason
            self._log.note("other servers are there: going on with them")

    async def _work_until_servers_change(self, known: Mapping[str, ServerEndpoint]) -> ProgressCounter | None:
        """Work with these servers; None where others came before all was done."""
        drain = asyncio.Event()
        working = asyncio.create_task(self._work_once([endpoint.url for endpoint in known.values()], drain))
        change = asyncio.create_task(wait_for_change(self._run, set(known)))
        try:
            await asyncio.wait({working, change}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            drain.set()
            if not self._at_work:  # it waits for servers that are gone
                working.cancel()
            await asyncio.wait({working})
            if working.cancelled() or isinstance(working.exception(), EndpointDown):
                return None
            return working.result() if working.result().stop_reason else None
        finally:
            for task in (working, change):
                task.cancel()
            await asyncio.gather(working, change, return_exceptions=True)


def read_api_key(book: Book) -> str:
    """Return the key that model servers may require; empty without one."""
    return os.environ.get(book.rounds()[-1].settings.api_key_env, "").strip()
