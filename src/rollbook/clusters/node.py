"""`python -m rollbook.clusters.node ROLE RUN SUBMISSION`: what a script hands over to. Never run by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path

from rollbook.book.book import Book
from rollbook.clusters import slurm
from rollbook.clusters.blame import bad_nodes, blame
from rollbook.clusters.cancel import cancel_workers
from rollbook.clusters.duty import SERVER_STARTS, Duty, key_of
from rollbook.clusters.heed import Heed
from rollbook.clusters.joblog import JobLog
from rollbook.clusters.order import read_order
from rollbook.clusters.pack import check_pack
from rollbook.clusters.requeue import put_back, seat_of, written
from rollbook.clusters.script import excluded
from rollbook.clusters.servers.sharing import serve_all
from rollbook.collect.loop import on_fast_loop
from rollbook.errors import ChildFailed, RollbookError, Shortfall, Stopped, UsageError


class Post:
    """A job on its node: does its duty, and sees to what comes after, however that ended."""

    def __init__(self, run: Path, number: int) -> None:
        self.run, self.order = run, read_order(run, number)
        self.seat, self.log = seat_of(os.environ), JobLog()
        self.heed = Heed(self.order.profile.grace_s)
        again = f", started again {self.seat.restart} times" if self.seat.restart else ""
        self.log.note(f"job {self.seat.name or '-'} on {self.seat.node or 'this machine'}{again}")
        if "SLURM_HET_SIZE" in os.environ:
            raise UsageError("this is a heterogeneous job; workers are an array of jobs on one kind of node")
        if self.order.pack:
            check_pack(run, self.order.pack)

    def carry_out(self, duty: Callable[[], Coroutine[None, None, int]]) -> int:
        """Do it, unless this node is known not to do; gives the exit code."""
        if self.seat.node in bad_nodes(self.run):
            return self._leave_node("servers have failed here before")
        try:
            return on_fast_loop(lambda: self._heeding(duty))
        except ChildFailed as error:
            self.heed.deaf()
            blame(self.run, self.seat.node, str(error))
            return self._leave_node(str(error))
        except KeyboardInterrupt:
            return self._interrupted("interrupted")
        except Stopped as error:
            if type(error) is not Stopped:  # the endpoint or the disk: the same would come again
                raise
            return self._interrupted(str(error))

    async def _heeding(self, duty: Callable[[], Coroutine[None, None, int]]) -> int:
        self.heed.listen()
        return await duty()

    def _interrupted(self, why: str) -> int:
        self.heed.deaf()
        self.log.note(why)
        self.log.note(put_back(self.run, self.seat, self.order.profile.restarts, written(self.run) > 0))
        return Stopped.exit_code

    def _leave_node(self, why: str) -> int:
        """Others may do better elsewhere: what waits does not start here, and this task goes back to the queue."""
        self.heed.deaf()
        self.log.note(f"leaving {self.seat.node}: {why}")
        bad = bad_nodes(self.run)
        if bad and self.seat.array:
            with suppress(slurm.Refused):  # tasks that run already cannot be told
                slurm.keep_off(self.seat.array, excluded(self.order.profile, bad))
        self.log.note(put_back(self.run, self.seat, self.order.profile.restarts, wrote=written(self.run) > 0))
        return ChildFailed.exit_code

    async def work(self) -> int:
        """A worker's duty."""
        verdict = await Duty(self.run, self.order, self.log).work()
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
        await serve_all(self.run, self.order, serve, key_of(Book(self.run)), SERVER_STARTS, self.log.note)
        return 0


def main(words: list[str]) -> int:
    """Do what a script asks; every way it can end is an exit code."""
    role, run, number = words
    try:
        post = Post(Path(run), int(number))
        return post.carry_out({"worker": post.work, "server": post.serve}[role])
    except KeyboardInterrupt:
        return Stopped.exit_code
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
