"""`python -m rollbook.clusters.node ROLE RUN SUBMISSION`: what a batch script runs. Never run by hand.

A worker works on a run with a model that is already served, or with its own or shared servers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.book import Book, is_finished
from rollbook.clusters.job_files import SubmissionOrder, read_bad_nodes, read_order, report_bad_node
from rollbook.clusters.job_process import JobLog, SignalHandler, count_written_bytes, requeue_if_useful, run_entry_point
from rollbook.clusters.job_status import cancel_workers
from rollbook.clusters.packing import check_pack
from rollbook.clusters.scheduler import find_scheduler
from rollbook.clusters.servers.model_servers import (
    ServerEndpoint,
    run_while_alive,
    serve_models,
    serve_shared,
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
from rollbook.environments import RunRoles, open_roles
from rollbook.errors import ChildFailed, EndpointDown, SchedulerError, Shortfall, Stopped, UsageError
from rollbook.processes import run_event_loop

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
            open_roles(RunRoles.from_manifest(book.manifest), settings) as roles,
            open_run_model(spec, settings, self._log) as model,
        ):
            assert model is not None
            round_ = msgspec.structs.replace(base, settings=settings)
            self._at_work = True
            try:
                return await work_on_book(
                    book, round_, model, self._log, roles=roles, handle_signals=True, drain_event=drain
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
        """Work with servers of other jobs. When these change, the worker drains and continues with the new ones."""
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
            self._log.note("the servers changed: continuing with the new ones")

    async def _work_until_servers_change(self, known: Mapping[str, ServerEndpoint]) -> ProgressCounter | None:
        """Work with these servers; None where the servers changed before all was done."""
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


class NodeJob:
    """A job on its node: run the worker or the server, then requeue, report or exit."""

    def __init__(self, run: Path, number: int) -> None:
        self.run, self.order = run, read_order(run, number)
        self.scheduler, self.log = find_scheduler(self.order.scheduler), JobLog()
        self.task = self.scheduler.read_current_task(os.environ)
        self.signals = SignalHandler(self.order.profile.grace_s)
        again = f", started again {self.task.restart} times" if self.task.restart else ""
        self.log.note(f"job {self.task.name or '-'} on {self.task.node or 'this machine'}{again}")
        self.scheduler.check_job(os.environ)
        if self.order.pack:
            check_pack(run, self.order.pack)

    def execute(self, work: Callable[[], Coroutine[None, None, int]]) -> int:
        """Do the work, unless servers failed on this node before; return the exit code."""
        if self.task.node in read_bad_nodes(self.run):
            return self._leave_node("servers have failed here before")
        try:
            return run_event_loop(lambda: self._run_with_signals(work))
        except ChildFailed as error:
            self.signals.ignore()
            report_bad_node(self.run, self.task.node, str(error))
            return self._leave_node(str(error))
        except KeyboardInterrupt:
            return self._requeue_interrupted("interrupted")
        except Stopped as error:
            if type(error) is not Stopped:  # the endpoint or the disk: the same would happen again
                raise
            return self._requeue_interrupted(str(error))

    async def _run_with_signals(self, work: Callable[[], Coroutine[None, None, int]]) -> int:
        self.signals.listen()
        return await work()

    def _requeue_interrupted(self, why: str) -> int:
        self.signals.ignore()
        self.log.note(why)
        self._requeue()
        return Stopped.exit_code

    def _requeue(self) -> None:
        wrote, most = count_written_bytes(self.run) > 0, self.order.profile.restarts
        self.log.note(requeue_if_useful(self.run, self.scheduler, self.task, most, wrote))

    def _leave_node(self, why: str) -> int:
        """Keep waiting tasks off this node, and put this one back into the queue to start elsewhere."""
        self.signals.ignore()
        self.log.note(f"leaving {self.task.node}: {why}")
        bad = read_bad_nodes(self.run)
        if bad and self.task.array:
            with suppress(SchedulerError):  # tasks that run already cannot be changed
                self.scheduler.exclude_nodes(self.task.array, self.order.profile, bad)
        self._requeue()
        return ChildFailed.exit_code

    async def work(self) -> int:
        """Run a worker."""
        verdict = await NodeWorker(self.run, self.order, self.log).work()
        self.log.stop()
        if not verdict:
            self.log.note("nothing is left to do")
            return 0
        self.log.note(f"{verdict}: the other workers are cancelled")
        cancel_workers(self.run)
        return Shortfall.exit_code

    async def serve(self) -> int:
        """Run a model server that all workers share."""
        serve = self.order.serve
        if serve is None:
            raise UsageError(f"{self.run}: this submission has no servers")
        await serve_shared(self.run, self.order, serve, read_api_key(Book(self.run)), MAX_SERVER_STARTS, self.log.note)
        return 0


def main(words: list[str]) -> int:
    """Run the job of a script; return its exit code."""
    role, run, number = words
    job = NodeJob(Path(run), int(number))
    return job.execute({"worker": job.work, "server": job.serve}[role])


if __name__ == "__main__":
    run_entry_point(main)
