"""`python -m rollbook.clusters.node ROLE RUN SUBMISSION`: what a batch script hands over to. Never run by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path

from rollbook.book import Book
from rollbook.clusters import scheduler, slurm
from rollbook.clusters.job_files import read_bad_nodes, read_order, report_bad_node
from rollbook.clusters.job_process import JobLog, SignalHandler, count_written_bytes, requeue_if_useful
from rollbook.clusters.job_status import cancel_workers
from rollbook.clusters.node_worker import MAX_SERVER_STARTS, NodeWorker, read_api_key
from rollbook.clusters.packing import check_pack
from rollbook.clusters.servers.model_servers import serve_shared
from rollbook.clusters.slurm import list_excluded_nodes, read_current_task
from rollbook.errors import ChildFailed, RollbookError, Shortfall, Stopped, UsageError
from rollbook.processes import run_event_loop


class NodeJob:
    """A job on its node: does its duty, and sees to what comes after, however that ended."""

    def __init__(self, run: Path, number: int) -> None:
        self.run, self.order = run, read_order(run, number)
        self.task, self.log = read_current_task(os.environ), JobLog()
        self.signals = SignalHandler(self.order.profile.grace_s)
        again = f", started again {self.task.restart} times" if self.task.restart else ""
        self.log.note(f"job {self.task.name or '-'} on {self.task.node or 'this machine'}{again}")
        if "SLURM_HET_SIZE" in os.environ:
            raise UsageError("this is a heterogeneous job; workers are an array of jobs on one kind of node")
        if self.order.pack:
            check_pack(run, self.order.pack)

    def execute(self, work: Callable[[], Coroutine[None, None, int]]) -> int:
        """Do it, unless this node is known not to do; gives the exit code."""
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
            if type(error) is not Stopped:  # the endpoint or the disk: the same would come again
                raise
            return self._requeue_interrupted(str(error))

    async def _run_with_signals(self, work: Callable[[], Coroutine[None, None, int]]) -> int:
        self.signals.listen()
        return await work()

    def _requeue_interrupted(self, why: str) -> int:
        self.signals.ignore()
        self.log.note(why)
        self.log.note(
            requeue_if_useful(self.run, self.task, self.order.profile.restarts, count_written_bytes(self.run) > 0)
        )
        return Stopped.exit_code

    def _leave_node(self, why: str) -> int:
        """Others may do better elsewhere: what waits does not start here, and this task goes back to the queue."""
        self.signals.ignore()
        self.log.note(f"leaving {self.task.node}: {why}")
        bad = read_bad_nodes(self.run)
        if bad and self.task.array:
            with suppress(scheduler.SchedulerError):  # tasks that run already cannot be told
                slurm.exclude_nodes(self.task.array, list_excluded_nodes(self.order.profile, bad))
        self.log.note(
            requeue_if_useful(self.run, self.task, self.order.profile.restarts, wrote=count_written_bytes(self.run) > 0)
        )
        return ChildFailed.exit_code

    async def work(self) -> int:
        """A worker's duty."""
        verdict = await NodeWorker(self.run, self.order, self.log).work()
        self.log.stop()
        if not verdict:
            self.log.note("nothing is left to do")
            return 0
        self.log.note(f"{verdict}: the other workers are cancelled")
        cancel_workers(self.run)
        return Shortfall.exit_code

    async def serve(self) -> int:
        """The duty of a server that all workers share."""
        serve = self.order.serve
        if serve is None:
            raise UsageError(f"{self.run}: this submission has no servers")
        await serve_shared(self.run, self.order, serve, read_api_key(Book(self.run)), MAX_SERVER_STARTS, self.log.note)
        return 0


def main(words: list[str]) -> int:
    """Do what a script asks; every way it can end is an exit code."""
    role, run, number = words
    try:
        post = NodeJob(Path(run), int(number))
        return post.execute({"worker": post.work, "server": post.serve}[role])
    except KeyboardInterrupt:
        return Stopped.exit_code
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
