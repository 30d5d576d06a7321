"""One server of NeMo Gym that we started: ready by a deadline, started again when it dies, gone when we are."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.errors import ChildFailed, RolloutFailed
from rollbook.processes.child import Child, module_argv
from rollbook.wire.gym.driving.client import Client

HOST = "127.0.0.1"
READY_S = 110.0
"""How long a server may take until it answers; importing Gym alone takes many seconds."""

RESTARTS = 3
ENDING_S = 10.0
LOOK_S = 0.1
TAKEN = "address already in use"
TO_LOG = 'exec "$0" "$@" </dev/null >&2'
"""The keeper talks to its command; a server is only listened to by its log."""


class PortTaken(Exception):
    """Another program has the port."""


class Program(msgspec.Struct, frozen=True):
    """What is started: a Python, a file, where, and with which further variables."""

    python: Path
    entry: Path
    variables: Mapping[str, str]


class Instance:
    """A server by its name in the configuration. Its client is the same however often it is started."""

    def __init__(self, name: str, client: Client) -> None:
        self.name, self.client = name, client
        self._child: Child | None = None
        self._life: socket.socket | None = None
        self._program: Program | None = None
        self._left = RESTARTS
        self._up = asyncio.Event()
        self._again: asyncio.Task[None] | None = None
        self._over = ""

    @property
    def pid(self) -> int:
        """The process that keeps it."""
        assert self._child
        return self._child.pid

    async def start(self, program: Program) -> None:
        """Start it and wait until it answers; ChildFailed with the end of its log, PortTaken if it cannot listen."""
        self._program = program
        environ = {**os.environ, **program.variables}
        self._life, theirs = socket.socketpair()
        names = ",".join(name for name in environ if "," not in name)
        command = ("/bin/sh", "-c", TO_LOG, str(program.python), program.entry.name)
        argv = module_argv("rollbook.processes.keeper", str(theirs.fileno()), names, *command)
        with theirs:
            self._child = Child(argv, env=environ, cwd=program.entry.parent, pass_fds=(theirs.fileno(),))
        await self._ready(self._child)
        self._up.set()
        self._child.notify(asyncio.get_running_loop(), self._ended)

    async def _ready(self, child: Child) -> None:
        try:
            async with asyncio.timeout(READY_S):
                while not await self._answers():
                    if child.returncode is not None:
                        raise self._early(child)
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise ChildFailed(f"{self.name} did not answer within {READY_S:g} s", child.log_tail()) from None
        if child.returncode is not None:
            raise self._early(child)

    async def _answers(self) -> bool:
        """Whether the one that answers is ours: Gym's servers put their name into their cookies."""
        cookies: dict[str, str] = {}
        try:
            await self.client.get("/", cookies=cookies)
        except RolloutFailed:
            return False
        if any("___" in name and not name.endswith(f"___{self.name}") for name in cookies):
            raise PortTaken(self.client.base)
        return True

    def _early(self, child: Child) -> Exception:
        tail = child.log_tail()
        if TAKEN in tail.lower():
            return PortTaken(self.client.base)
        return ChildFailed(f"{self.name} ended (exit {child.returncode}) before it answered", tail)

    def _ended(self) -> None:
        """It died: what it held is lost. It comes back, so many times."""
        self._up.clear()
        self.client.moved(self.client.base)
        if self._over:
            return
        assert self._child
        if not self._left:
            self._over = (
                f"{self.name} ended {RESTARTS + 1} times; last: {self._child.last_words()[:200] or 'it said nothing'}"
            )
            self._up.set()
            return
        self._left -= 1
        self._again = asyncio.create_task(self._return(), name=f"restart {self.name}")

    async def _return(self) -> None:
        assert self._program
        self._hang_up()
        try:
            await self.start(self._program)
        except (ChildFailed, PortTaken) as error:
            self._over = f"{self.name} ended and could not be started again: {error}"
            self._up.set()

    async def up(self) -> None:
        """Wait until it answers; RolloutFailed when it never will."""
        await self._up.wait()
        if self._over:
            raise RolloutFailed("environment_error", self.name, self._over)

    async def stop(self) -> None:
        """End it with all that it started."""
        self._over = f"{self.name} was ended with the run"
        if self._again:
            self._again.cancel()
            with suppress(asyncio.CancelledError):
                await self._again
        self._hang_up()
        if self._child:
            with suppress(TimeoutError):  # by its keeper, so that being killed halfway through this leaves nothing
                await self._child.exited(ENDING_S)
            await self._child.kill_tree()

    def _hang_up(self) -> None:
        """Whoever keeps the server ends it when nobody holds this any more."""
        if self._life is not None:
            self._life.close()
            self._life = None


class HeldPort:
    """A port that nobody takes by accident until a server listens on it: bound, but not listened on."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Leave it to whoever listens there now."""
        self._socket.close()
