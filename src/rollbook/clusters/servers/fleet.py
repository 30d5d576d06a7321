"""The servers of one node: as many replicas as were ordered, each with its GPUs, its port and its log."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from rollbook.clusters.containers import contained
from rollbook.clusters.order import Order, Serve
from rollbook.clusters.servers.endpoints import Endpoint, publish, withdraw
from rollbook.clusters.servers.kinds import VISIBLE, Head, devices_of, server_argv
from rollbook.clusters.servers.ports import Port
from rollbook.clusters.servers.ready import wait_ready
from rollbook.clusters.servers.spread import last_words, spread_argv
from rollbook.errors import ChildFailed, RollbookError
from rollbook.processes.child import Child, module_argv

T = TypeVar("T")
HERE = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
GRACE_S = 10.0


class Server:
    """One replica, from its start to its end."""

    def __init__(self, run: Path, order: Order, serve: Serve, devices: str | None, say: Callable[[str], None]) -> None:
        self._run, self._serve, self._say = run, serve, say
        self._host = EVERYWHERE if serve.shared else HERE
        self.port = Port(self._host)
        self.log = run / "logs" / f"server-{socket.gethostname()}-{os.getpid()}-{self.port.number}.log"
        environ = {**os.environ, **order.profile.server.environment, **({VISIBLE: devices} if devices else {})}
        inside = [] if order.profile.image_of("worker") else contained(order.profile, "server", run)
        self._meeting = Port(EVERYWHERE) if serve.nodes > 1 else None
        argv = self._argv(inside)
        workdir = order.profile.server.workdir
        cwd = Path(workdir) if workdir and not inside else None
        self.child = Child(module_argv("rollbook.clusters.servers.mortal", *argv), env=environ, cwd=cwd, log=self.log)
        self.died = asyncio.Event()
        self.child.notify(asyncio.get_running_loop(), self.died.set)
        self.endpoint = Endpoint(
            secrets.token_hex(8),
            socket.gethostname() if serve.shared else HERE,
            self.port.number,
            serve.name,
            self.child.pid,
            bool(serve.shared),
            os.environ.get("SLURM_JOB_ID", ""),
        )

    def _argv(self, inside: list[str]) -> list[str]:
        serve, where = self._serve, (self._host, self.port.number)
        if self._meeting is None:
            return [*inside, *server_argv(serve, *where)]
        head = Head(socket.gethostname(), self._meeting.number)
        ranks = [server_argv(serve, *where, head, rank) for rank in range(serve.nodes)]
        return spread_argv(os.environ.get("SLURMD_NODENAME", ""), inside, ranks)

    async def ready(self, key: str) -> None:
        """Until it answers; then everyone may know."""
        root = f"http://{HERE}:{self.port.number}"
        await wait_ready(
            root, self._serve.name, within_s=self._serve.ready_s, ended=self.ended, key=key, what=self.what
        )
        publish(self._run, self.endpoint)
        self._say(f"{self._serve.name} is served at {self.endpoint.url}; its log: {self.log}")

    @property
    def what(self) -> str:
        """It in words."""
        return f"the {self._serve.kind} server (log: {self.log})"

    def ended(self) -> str | None:
        """How it ended; None while it runs."""
        if self.child.returncode is None:
            return None
        return f"exit {self.child.returncode}: {last_words(self.child.log_tail())}"

    async def stop(self) -> None:
        """Withdraw it and end it with all that it started."""
        withdraw(self._run, self.endpoint)
        await self.child.terminate(GRACE_S)
        self.port.release()
        if self._meeting:
            self._meeting.release()


@asynccontextmanager
async def serving(run: Path, order: Order, serve: Serve, key: str, say: Callable[[str], None]) -> AsyncIterator[Fleet]:
    """All servers of this node, ready, for as long as the context is."""
    fleet = Fleet()
    try:
        for devices in devices_of(serve, os.environ.get(VISIBLE)):
            fleet.servers.append(Server(run, order, serve, devices, say))
        await all_ready(fleet.servers, key)
        yield fleet
    finally:
        await asyncio.gather(*(server.stop() for server in fleet.servers))


async def all_ready(servers: Sequence[Server], key: str) -> None:
    """Until all answer. Where one does not, no other is waited for either: it would be published while it is ended."""
    try:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.ready(key))
    except* RollbookError as several:
        raise several.exceptions[0] from None


class Fleet:
    """The servers that run."""

    def __init__(self) -> None:
        self.servers: list[Server] = []

    @property
    def urls(self) -> list[str]:
        """Where they are."""
        return [server.endpoint.url for server in self.servers]

    async def loss(self) -> ChildFailed:
        """Wait for the first of them that ends; gives what is to be said of it."""
        deaths = {asyncio.create_task(server.died.wait()): server for server in self.servers}
        try:
            done, _ = await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
            server = deaths[done.pop()]
            return ChildFailed(f"{server.what} ended while it was needed ({server.ended()})")
        finally:
            for death in deaths:
                death.cancel()


async def guarded(work: Coroutine[None, None, T], fleet: Fleet) -> T:
    """Work for as long as every server lives: the first death drops what is in flight and gives back all claims."""
    working, losing = asyncio.create_task(work), asyncio.create_task(fleet.loss())
    try:
        await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise losing.result()
    finally:
        for task in (working, losing):
            task.cancel()
        await asyncio.gather(working, losing, return_exceptions=True)
