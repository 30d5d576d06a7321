"""`python -m rollbook.clusters.node ROLE RUN SUBMISSION`: what a batch script runs. Never run by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path

from rollbook.book import Book
from rollbook.clusters.job_files import read_bad_nodes, read_order, report_bad_node
from rollbook.clusters.job_process import JobLog, SignalHandler, count_written_bytes, requeue_if_useful
from rollbook.clusters.job_status import cancel_workers
from rollbook.clusters.node_worker import MAX_SERVER_STARTS, NodeWorker, read_api_key
from rollbook.clusters.packing import check_pack
from rollbook.clusters.scheduler import SchedulerError, find_scheduler
from rollbook.clusters.servers.model_servers import serve_shared
from rollbook.errors import ChildFailed, RollbookError, Shortfall, Stopped, UsageError
from rollbook.processes import run_event_loop


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
    try:
        job = NodeJob(Path(run), int(number))
        return job.execute({"worker": job.work, "server": job.serve}[role])
    except KeyboardInterrupt:
        return Stopped.exit_code
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
