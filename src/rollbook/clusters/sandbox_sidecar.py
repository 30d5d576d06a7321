"""`python -m rollbook.clusters.sandbox_sidecar RUN SUBMISSION -- COMMAND...`: a sandbox server next to a worker.

It runs on the node itself. So a worker in an image that may not use namespaces still has full isolation: the address
of the sandbox is exported to it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollbook.clusters.job_files import SubmissionOrder, read_order
from rollbook.clusters.job_process import JobLog, raise_interrupt, requeue_if_useful, run_entry_point
from rollbook.clusters.job_scripts import SANDBOX_VARIABLES
from rollbook.clusters.scheduler import find_scheduler
from rollbook.clusters.servers.launch import LockedPort
from rollbook.errors import ChildFailed, Stopped
from rollbook.processes import Child, die_with_parent, module_argv
from rollbook.sandbox import SandboxError
from rollbook.sandbox.backends import RemoteSandbox

LOOPBACK = "127.0.0.1"
TOKEN_VARIABLE = "ROLLBOOK_SANDBOX_TOKEN"
SERVER_LIMITS = ("--room", "4096", "--sessions", "4096")
"""Enough for all processes of one worker, each of which has its own limit."""
MAX_STARTS = 3
READY_S, POLL_S, GRACE_S = 120.0, 0.1, 10.0
FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class SandboxSidecar:
    """A sandbox server with a fixed address: one that dies is restarted there, within a bound."""

    def __init__(self, run: Path, order: SubmissionOrder) -> None:
        self._order, self._token, self._port = order, secrets.token_urlsafe(24), LockedPort(LOOPBACK)
        self._log = run / "logs" / f"sandbox-{socket.gethostname()}-{os.getpid()}.log"
        self._child: Child | None = None
        self.note = JobLog().note

    @property
    def environment(self) -> dict[str, str]:
        """The variables with its address, for the worker and the worker's children."""
        number = str(self._port.number)
        return dict(
            zip(SANDBOX_VARIABLES, (f"http://{LOOPBACK}:{number}/{self._token}", LOOPBACK, number), strict=True)
        )

    async def start(self) -> asyncio.Event:
        """Start it and wait until it answers; return an event that is set when it ends."""
        packages = [word for name in self._order.sandbox_packages for word in ("--package", name)]
        words = ["sandbox", "serve", "--host", LOOPBACK, "--port", str(self._port.number), *SERVER_LIMITS, *packages]
        argv = module_argv("rollbook.clusters.servers.exec_child", *module_argv("rollbook", *words))
        self._child = Child(argv, env={**os.environ, TOKEN_VARIABLE: self._token}, log=self._log)
        ended = asyncio.Event()
        self._child.call_on_exit(asyncio.get_running_loop(), ended.set)
        try:
            async with asyncio.timeout(READY_S):
                while not await asyncio.to_thread(self._is_ready):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ChildFailed(f"the sandbox server was not ready within {READY_S:g} s; its log: {self._log}") from None
        self.note(f"a sandbox is served at {LOOPBACK}:{self._port.number}")
        return ended

    def _is_ready(self) -> bool:
        assert self._child
        if self._child.returncode is not None:
            raise ChildFailed(f"the sandbox server ended before it was ready: {self._child.last_log_line()}")
        try:
            return bool(RemoteSandbox(self.environment[SANDBOX_VARIABLES[0]]).isolation)
        except SandboxError:
            return False

    async def keep_running(self, ended: asyncio.Event) -> None:
        """Restart it when it ends, until it has ended too often."""
        for start in range(1, MAX_STARTS + 1):
            await ended.wait()
            self.note(f"the sandbox server ended (start {start} of at most {MAX_STARTS}); its log: {self._log}")
            if start == MAX_STARTS:
                return
            try:
                ended = await self.start()
            except ChildFailed as error:
                self.note(str(error))
                return

    async def stop(self) -> None:
        """Stop it and everything that runs in it."""
        if self._child:
            await self._child.terminate(GRACE_S)
        self._port.release()


async def run_with_sidecar(sidecar: SandboxSidecar, command: Sequence[str]) -> int:
    """Run the worker to its end; when the sandbox is lost, send it the signal to drain."""
    keeping: asyncio.Task[None] | None = None
    try:
        keeping = asyncio.create_task(sidecar.keep_running(await sidecar.start()))
        environ = {**os.environ, **sidecar.environment}
        tie_to_parent = partial(die_with_parent, os.getpid())
        worker = await asyncio.create_subprocess_exec(*command, env=environ, preexec_fn=tie_to_parent)
        for number in FORWARDED_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, worker.send_signal, number)
        working = asyncio.create_task(worker.wait())
        await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            worker.send_signal(signal.SIGUSR1)
        return await working
    finally:
        if keeping:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await sidecar.stop()


def _run_worker(run: Path, order: SubmissionOrder, command: Sequence[str]) -> int:
    for number in FORWARDED_SIGNALS:
        signal.signal(number, raise_interrupt)
    try:
        code = asyncio.run(run_with_sidecar(SandboxSidecar(run, order), command))
        return code if code >= 0 else 128 - code
    except KeyboardInterrupt:
        scheduler = find_scheduler(order.scheduler)
        task = scheduler.read_current_task(os.environ)
        JobLog().note(requeue_if_useful(run, scheduler, task, order.profile.restarts, wrote=False))
        return Stopped.exit_code


def main(words: list[str]) -> int:
    """Run the worker; return its exit code."""
    run, number, _, *command = words
    return _run_worker(Path(run), read_order(Path(run), int(number)), command)


if __name__ == "__main__":
    run_entry_point(main)
