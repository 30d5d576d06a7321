"""`python -m rollbook.clusters.beside RUN SUBMISSION -- COMMAND...`: a sandbox server, and a worker that uses it.

It runs on the node itself. So a worker in an image that may not use namespaces has walls that are whole, over an
address that is exported to it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollbook.clusters.containers import SANDBOX
from rollbook.clusters.joblog import JobLog
from rollbook.clusters.order import Order, read_order
from rollbook.clusters.requeue import put_back, seat_of
from rollbook.clusters.servers.ports import Port
from rollbook.errors import ChildFailed, RollbookError, Stopped
from rollbook.processes.child import Child, module_argv
from rollbook.processes.life import die_with_parent
from rollbook.sandbox import SandboxError
from rollbook.sandbox.remote import Remote

HERE = "127.0.0.1"
TOKEN = "ROLLBOOK_SANDBOX_TOKEN"
ROOM = ("--room", "4096", "--sessions", "4096")
"""Enough for all processes of one worker, each of which bounds what it asks for."""
STARTS = 3
READY_S, LOOK_S, GRACE_S = 120.0, 0.1, 10.0
PASSED_ON = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class Beside:
    """A sandbox server that keeps its address: one that dies is started again there, within a bound."""

    def __init__(self, run: Path, order: Order) -> None:
        self._order, self._token, self._port = order, secrets.token_urlsafe(24), Port(HERE)
        self._log = run / "logs" / f"sandbox-{socket.gethostname()}-{os.getpid()}.log"
        self._child: Child | None = None
        self.note = JobLog().note

    @property
    def exported(self) -> dict[str, str]:
        """Where it is, for the worker and for what the worker starts."""
        number = str(self._port.number)
        return dict(zip(SANDBOX, (f"http://{HERE}:{number}/{self._token}", HERE, number), strict=True))

    async def start(self) -> asyncio.Event:
        """Start it and wait until it answers; gives the event of its end."""
        packages = [word for name in self._order.sandbox_packages for word in ("--package", name)]
        words = ["sandbox", "serve", "--host", HERE, "--port", str(self._port.number), *ROOM, *packages]
        argv = module_argv("rollbook.clusters.servers.mortal", *module_argv("rollbook", *words))
        self._child = Child(argv, env={**os.environ, TOKEN: self._token}, log=self._log)
        gone = asyncio.Event()
        self._child.notify(asyncio.get_running_loop(), gone.set)
        try:
            async with asyncio.timeout(READY_S):
                while not await asyncio.to_thread(self._answers):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise ChildFailed(f"the sandbox server was not ready within {READY_S:g} s; its log: {self._log}") from None
        self.note(f"a sandbox is served at {HERE}:{self._port.number}")
        return gone

    def _answers(self) -> bool:
        assert self._child
        if self._child.returncode is not None:
            raise ChildFailed(f"the sandbox server ended before it was ready: {self._child.last_words()}")
        try:
            return bool(Remote(self.exported[SANDBOX[0]]).isolation)
        except SandboxError:
            return False

    async def keep(self, gone: asyncio.Event) -> None:
        """Until it has died too often."""
        for start in range(1, STARTS + 1):
            await gone.wait()
            self.note(f"the sandbox server ended (start {start} of at most {STARTS}); its log: {self._log}")
            if start == STARTS:
                return
            try:
                gone = await self.start()
            except ChildFailed as error:
                self.note(str(error))
                return

    async def stop(self) -> None:
        """End it with all that runs in it."""
        if self._child:
            await self._child.terminate(GRACE_S)
        self._port.release()


async def work_beside(box: Beside, command: Sequence[str]) -> int:
    """Run the worker for as long as it wants; without a sandbox it is told to give back what it has."""
    keeping: asyncio.Task[None] | None = None
    try:
        keeping = asyncio.create_task(box.keep(await box.start()))
        environ = {**os.environ, **box.exported}
        mortal = partial(die_with_parent, os.getpid())
        worker = await asyncio.create_subprocess_exec(*command, env=environ, preexec_fn=mortal)
        _pass_on(worker)
        working = asyncio.create_task(worker.wait())
        await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            worker.send_signal(signal.SIGUSR1)
        return await working
    finally:
        if keeping:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await box.stop()


def _pass_on(worker: Process) -> None:
    """From now on Slurm's signals are the worker's."""
    for number in PASSED_ON:
        asyncio.get_running_loop().add_signal_handler(number, worker.send_signal, number)


def _too_early(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _worked(run: Path, order: Order, command: Sequence[str]) -> int:
    for number in PASSED_ON:
        signal.signal(number, _too_early)
    try:
        code = asyncio.run(work_beside(Beside(run, order), command))
        return code if code >= 0 else 128 - code
    except KeyboardInterrupt:
        JobLog().note(put_back(run, seat_of(os.environ), order.profile.restarts, wrote=False))
        return Stopped.exit_code


def main(words: list[str]) -> int:
    """Exit as the worker does."""
    run, number, _, *command = words
    try:
        return _worked(Path(run), read_order(Path(run), int(number)), command)
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
