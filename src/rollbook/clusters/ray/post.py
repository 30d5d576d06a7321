"""An actor that keeps one process: a worker of a crew, or a whole crew that goes on without a terminal.

The work is in a process of its own, as everywhere: it has its signals, its loop and its log to itself, and it dies with
the actor, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.book.book import Book
from rollbook.errors import ChildFailed, RollbookError, UsageError
from rollbook.processes.child import Child, module_argv

PATH = "PYTHONPATH"


class Errand(msgspec.Struct, frozen=True):
    """What an actor is sent to do. `environ` may hold secrets: it travels as an argument, which Ray shows nowhere."""

    module: str
    run: str
    run_id: str
    number: int
    log: str
    environ: dict[str, str]
    pack: str = ""
    workdir: str = ""

    def __repr__(self) -> str:
        return f"Errand({self.module} {self.run} {self.number})"  # no secrets, wherever this is shown


class Post:
    """Keeps the process of an errand. What an actor is asked, it may hear in any order."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()

    def start(self, errand: Errand) -> str:
        """Start it; gives why that was not possible."""
        try:
            self._problem = unseen(errand)
            if not self._problem:
                self._child = _started(errand)
        except (ChildFailed, OSError) as error:
            self._problem = f"no worker could be started on the node {socket.gethostname()}: {error}"
        finally:
            self._begun.set()
        return self._problem

    async def wait(self) -> tuple[int, str]:
        """Its exit code and last words, once it has ended."""
        await self._begun.wait()
        if self._problem:
            return UsageError.exit_code, self._problem
        over = asyncio.Event()
        self._child.notify(asyncio.get_running_loop(), over.set)
        await over.wait()
        assert self._child.returncode is not None
        return self._child.returncode, self._child.last_words()

    async def signal(self, number: int) -> None:
        """Pass a signal on."""
        await self._begun.wait()
        if not self._problem:
            self._child.signal(signal.Signals(number))

    def end_with_it(self) -> None:
        """From now on nobody waits: when the process ends, so does this actor."""
        self._child.notify(asyncio.get_running_loop(), _end_self())


def _started(errand: Errand) -> Child:
    environ = {**os.environ, **errand.environ}
    if errand.pack:
        environ[PATH] = os.pathsep.join(filter(None, (errand.pack, environ.get(PATH))))
    argv = module_argv(errand.module, errand.run, str(errand.number))
    return Child(argv, env=environ, cwd=Path(errand.workdir) if errand.workdir else None, log=Path(errand.log))


def unseen(errand: Errand) -> str:
    """Why a run directory cannot be worked on from this node; empty if it can."""
    try:
        found = Book(errand.run).manifest.run
    except (RollbookError, OSError):
        found = ""
    if found == errand.run_id:
        return ""
    there = f"cannot be seen from the node {socket.gethostname()}"
    return f"{errand.run} {there}: a run directory has to lie where every node of the cluster sees it"


def _end_self() -> Callable[[], None]:
    import ray

    me = ray.get_runtime_context().current_actor
    return lambda: ray.kill(me)
