"""Running model servers: the replicas of one node, when they are ready, where they listen, who shares them.

A server is ready when it is healthy, serves the right name and has written one token: an open port is not enough.
RUN/endpoints/NONCE.json has the address of a server of this run: complete or absent, and removed with its server.
Servers with jobs of their own serve until the run is over; workers find them in the run directory.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from rollbook.book import Book, explain_disk_errors, is_finished, write_atomically
from rollbook.clusters.job_files import SubmissionOrder
from rollbook.clusters.job_scripts import make_container_argv
from rollbook.clusters.job_status import count_live_tasks
from rollbook.clusters.scheduler import DEFAULT_SCHEDULER, Scheduler, find_scheduler
from rollbook.clusters.servers.launch import (
    VISIBLE_DEVICES,
    HeadAddress,
    LockedPort,
    assign_devices,
    make_ranks_argv,
    make_server_argv,
)
from rollbook.core import JSON_ERRORS, ServerSpec, decode, encode, encode_pretty
from rollbook.errors import ChildFailed, RollbookError, SchedulerError, Stopped
from rollbook.models import read_models
from rollbook.processes import Child, module_argv


class ServerEndpoint(msgspec.Struct, frozen=True):
    """The address of a server that is ready. `shared`: any worker of the run may use it."""

    nonce: str
    host: str
    port: int
    name: str
    pid: int
    shared: bool
    job: str = ""
    scheduler: str = DEFAULT_SCHEDULER

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{self.host}:{self.port}/v1"


_endpoint_decoder = msgspec.json.Decoder(ServerEndpoint)


def publish_endpoint(run: Path, endpoint: ServerEndpoint) -> None:
    """Write the address of a server into the run directory."""
    with explain_disk_errors(run):
        (run / "endpoints").mkdir(exist_ok=True)
        write_atomically(run / "endpoints" / f"{endpoint.nonce}.json", encode_pretty(endpoint))


def withdraw_endpoint(run: Path, endpoint: ServerEndpoint) -> None:
    """Remove the address of a server from the run directory."""
    (run / "endpoints" / f"{endpoint.nonce}.json").unlink(missing_ok=True)


def read_shared_endpoints(run: Path) -> dict[str, ServerEndpoint]:
    """Read the servers that every worker may use, by nonce."""
    endpoints = {}
    for path in sorted((run / "endpoints").glob("[!.]*.json")):
        try:
            endpoint = _endpoint_decoder.decode(path.read_bytes())
        except FileNotFoundError:
            continue  # withdrawn just now
        if endpoint.shared:
            endpoints[endpoint.nonce] = endpoint
    return endpoints


FIRST_DELAY_S, MAX_DELAY_S = 0.2, 5.0
HEALTH_TIMEOUT_S = 10.0
COMPLETION_TIMEOUT_S = 120.0


async def wait_until_ready(
    root: str,
    name: str,
    *,
    timeout_s: float,
    describe_exit: Callable[[], str | None],
    key: str = "",
    what: str = "the server",
) -> None:
    """Wait until the server at `root` answers; ChildFailed when it ends (`describe_exit`) or when time is up."""
    loop = asyncio.get_running_loop()
    deadline, delay, why = loop.time() + timeout_s, FIRST_DELAY_S, "no check was made"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers, trust_env=False) as session:
        while True:
            ending = describe_exit()
            if ending is not None:
                raise ChildFailed(f"{what} ended before it was ready ({ending})")
            left = deadline - loop.time()
            if left <= 0:
                raise ChildFailed(f"{what} was not ready within {timeout_s:g} s: {why}")
            problem = await find_readiness_problem(session, root, name, left)
            if problem is None:
                return
            if loop.time() < deadline:  # a problem after that is only that time was up
                why = problem
            await asyncio.sleep(min(delay, max(deadline - loop.time(), 0)))
            delay = min(delay * 2, MAX_DELAY_S)


async def find_readiness_problem(session: aiohttp.ClientSession, root: str, name: str, timeout_s: float) -> str | None:
    """Return why a server is not ready; None if it is."""
    try:
        return await _check_health(session, root, timeout_s) or await _check_completion(session, root, name, timeout_s)
    except TimeoutError:
        return "no answer in time"
    except (aiohttp.ClientError, OSError) as error:
        return str(error) or type(error).__name__


async def _check_health(session: aiohttp.ClientSession, root: str, timeout_s: float) -> str | None:
    async with asyncio.timeout(min(timeout_s, HEALTH_TIMEOUT_S)):
        async with session.get(f"{root}/health") as response:
            return None if response.status == 200 else f"/health returns HTTP {response.status}"


async def _check_completion(session: aiohttp.ClientSession, root: str, name: str, timeout_s: float) -> str | None:
    async with asyncio.timeout(min(timeout_s, COMPLETION_TIMEOUT_S)):
        async with session.get(f"{root}/v1/models") as response:
            missing = _check_model_list(name, response.status, await response.read())
        if missing:
            return missing
        body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0}
        async with session.post(
            f"{root}/v1/chat/completions", data=encode(body), headers={"Content-Type": "application/json"}
        ) as response:
            return _check_answer(response.status, await response.read())


def _check_model_list(name: str, status: int, raw: bytes) -> str | None:
    if status != 200:
        return f"/v1/models returns HTTP {status}"
    try:
        served = [row.id for row in read_models(raw).data]
    except JSON_ERRORS:
        return "/v1/models is not a list of models"
    return None if name in served else f"it serves {', '.join(served) or 'nothing'}, not {name}"


def _check_answer(status: int, raw: bytes) -> str | None:
    if status != 200:
        return f"a completion of one token returns HTTP {status}"
    try:
        answer = decode(raw)
    except JSON_ERRORS:
        return "a completion of one token is not JSON"
    return None if isinstance(answer, dict) and answer.get("choices") else "a completion of one token has no choices"


T = TypeVar("T")
LOOPBACK = "127.0.0.1"
ALL_INTERFACES = "0.0.0.0"
GRACE_S = 10.0


class ModelServer:
    """One replica, from start to end."""

    def __init__(
        self, run: Path, order: SubmissionOrder, serve: ServerSpec, devices: str | None, say: Callable[[str], None]
    ) -> None:
        self._run, self._serve, self._say = run, serve, say
        self._scheduler = find_scheduler(order.scheduler)
        self._task = self._scheduler.read_current_task(os.environ)
        self._host = ALL_INTERFACES if serve.shared else LOOPBACK
        self.port = LockedPort(self._host)
        self.log = run / "logs" / f"server-{socket.gethostname()}-{os.getpid()}-{self.port.number}.log"
        environ = {**os.environ, **order.profile.server.environment, **({VISIBLE_DEVICES: devices} if devices else {})}
        container = [] if order.profile.image_of("worker") else make_container_argv(order, "server", run)
        self._rendezvous_port = LockedPort(ALL_INTERFACES) if serve.nodes > 1 else None
        argv = self._make_argv(container)
        workdir = order.profile.server.workdir
        cwd = Path(workdir) if workdir and not container else None
        self.child = Child(
            module_argv("rollbook.clusters.servers.exec_child", *argv), env=environ, cwd=cwd, log=self.log
        )
        self.died = asyncio.Event()
        self.child.call_on_exit(asyncio.get_running_loop(), self.died.set)
        self.endpoint = ServerEndpoint(
            secrets.token_hex(8),
            socket.gethostname() if serve.shared else LOOPBACK,
            self.port.number,
            serve.name,
            self.child.pid,
            bool(serve.shared),
            self._task.name,
            order.scheduler,
        )

    def _make_argv(self, container: list[str]) -> list[str]:
        serve, address = self._serve, (self._host, self.port.number)
        if self._rendezvous_port is None:
            return [*container, *make_server_argv(serve, *address)]
        head = HeadAddress(socket.gethostname(), self._rendezvous_port.number)
        ranks = [make_server_argv(serve, *address, head, rank) for rank in range(serve.nodes)]
        return make_ranks_argv(self._scheduler, self._task.node, container, ranks)

    async def wait_and_publish(self, key: str) -> None:
        """Wait until it answers, then publish its address."""
        root = f"http://{LOOPBACK}:{self.port.number}"
        await wait_until_ready(
            root,
            self._serve.name,
            timeout_s=self._serve.ready_s,
            describe_exit=self.describe_exit,
            key=key,
            what=self.description,
        )
        publish_endpoint(self._run, self.endpoint)
        self._say(f"{self._serve.name} is served at {self.endpoint.url}; its log: {self.log}")

    @property
    def description(self) -> str:
        """The server and its log in words."""
        return f"the {self._serve.kind} server (log: {self.log})"

    def describe_exit(self) -> str | None:
        """Return how it ended; None while it runs."""
        if self.child.returncode is None:
            return None
        return f"exit {self.child.returncode}: {find_last_line(self.child.log_tail(), self._scheduler)}"

    async def stop(self) -> None:
        """Withdraw its address and stop it with all its children."""
        withdraw_endpoint(self._run, self.endpoint)
        await self.child.terminate(GRACE_S)
        self.port.release()
        if self._rendezvous_port:
            self._rendezvous_port.release()


def find_last_line(tail: str, scheduler: Scheduler) -> str:
    """Return the last line that a server wrote; that its step was ended is the scheduler's line, and no reason."""
    own = [line.strip() for line in tail.splitlines() if not scheduler.is_own_message(line)]
    return next((line for line in reversed(own) if any(map(str.isalnum, line))), "")


@asynccontextmanager
async def serve_models(
    run: Path, order: SubmissionOrder, serve: ServerSpec, key: str, say: Callable[[str], None]
) -> AsyncIterator[ServerGroup]:
    """Run all servers of this node for the duration of the context, which starts when they are ready."""
    group = ServerGroup()
    try:
        for devices in assign_devices(serve, os.environ.get(VISIBLE_DEVICES)):
            group.servers.append(ModelServer(run, order, serve, devices, say))
        await wait_all_ready(group.servers, key)
        yield group
    finally:
        await asyncio.gather(*(server.stop() for server in group.servers))


async def wait_all_ready(servers: Sequence[ModelServer], key: str) -> None:
    """Wait until all answer. When one fails, the others are not waited for: they would be published while stopped."""
    try:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.wait_and_publish(key))
    except* RollbookError as several:
        raise several.exceptions[0] from None


class ServerGroup:
    """The running servers of one node."""

    def __init__(self) -> None:
        self.servers: list[ModelServer] = []

    @property
    def urls(self) -> list[str]:
        """Their base URLs."""
        return [server.endpoint.url for server in self.servers]

    async def wait_for_loss(self) -> ChildFailed:
        """Wait for the first of them that ends; return the error that describes it."""
        deaths = {asyncio.create_task(server.died.wait()): server for server in self.servers}
        try:
            done, _ = await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
            server = deaths[done.pop()]
            return ChildFailed(f"{server.description} ended while it was needed ({server.describe_exit()})")
        finally:
            for death in deaths:
                death.cancel()


async def run_while_alive(work: Coroutine[None, None, T], servers: ServerGroup) -> T:
    """Work while every server runs: the first loss drops what is in flight and gives back all claims."""
    working, loss = asyncio.create_task(work), asyncio.create_task(servers.wait_for_loss())
    try:
        await asyncio.wait({working, loss}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise loss.result()
    finally:
        for task in (working, loss):
            task.cancel()
        await asyncio.gather(working, loss, return_exceptions=True)


POLL_S = 3.0
QUEUE_POLL_EVERY = 10
"""At which of our polls the batch system is asked too: its controller answers many others."""


async def wait_for_endpoints(run: Path, timeout_s: float) -> dict[str, ServerEndpoint]:
    """Wait until there is a server; return all that there are."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not (endpoints := await asyncio.to_thread(read_live_endpoints, run)):
        if loop.time() > deadline:
            raise Stopped(f"no server was ready within {timeout_s:g} s: see {run / 'logs'}, then rollbook resume {run}")
        await asyncio.sleep(min(POLL_S, timeout_s))
    return endpoints


def read_live_endpoints(run: Path) -> dict[str, ServerEndpoint]:
    """Return the servers whose jobs are live, and remove the addresses that killed jobs left behind."""
    endpoints = read_shared_endpoints(run)
    try:
        gone = [nonce for nonce, endpoint in endpoints.items() if endpoint.job and not _is_job_live(endpoint)]
    except SchedulerError:
        return endpoints  # whether they are live shows when they are used
    for nonce in gone:
        withdraw_endpoint(run, endpoints.pop(nonce))
    return endpoints


def _is_job_live(endpoint: ServerEndpoint) -> bool:
    return any(task.live for task in find_scheduler(endpoint.scheduler).read_queue([endpoint.job]))


async def wait_for_change(run: Path, known: set[str]) -> None:
    """Wait until there are other servers than these."""
    while (now := set(await asyncio.to_thread(read_shared_endpoints, run))) == known or not now:  # noqa: ASYNC110 - files
        await asyncio.sleep(POLL_S)


async def serve_shared(
    run: Path, order: SubmissionOrder, serve: ServerSpec, key: str, starts: int, say: Callable[[str], None]
) -> None:
    """Serve until no worker needs it any more; a server that dies is restarted within a bound."""
    start = 0
    while not await asyncio.to_thread(is_run_finished, run):
        try:
            async with serve_models(run, order, serve, key, say) as servers:
                await run_while_alive(wait_until_unneeded(run, say), servers)
                return
        except ChildFailed as error:
            start += 1
            say(f"{error} (start {start} of at most {starts})")
            if start == starts:
                raise


async def wait_until_unneeded(run: Path, say: Callable[[str], None]) -> None:
    """Wait until all is done, or no worker is left that could do it."""
    for poll in count(1):
        ask_queue = poll % QUEUE_POLL_EVERY == 0
        if await asyncio.to_thread(is_run_finished, run) or (
            ask_queue and await asyncio.to_thread(has_no_workers, run, say)
        ):
            say("this server is no longer needed")
            return
        await asyncio.sleep(POLL_S)


def is_run_finished(run: Path) -> bool:
    """Return whether nothing is left to do."""
    book = Book(run)
    return is_finished(book, book.rounds())


def has_no_workers(run: Path, say: Callable[[str], None]) -> bool:
    """Return whether no worker waits or runs."""
    try:
        return not count_live_tasks(run)
    except SchedulerError as error:
        say(f"{error}; still serving")
        return False
