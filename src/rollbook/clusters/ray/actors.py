"""Workers as actors of a Ray cluster: joining the cluster, the actor that runs one process, its handle in the pool.

The work is in a process of its own, as everywhere: it has its own signals, event loop and log, and it dies with the
actor, however that ends. Ray is imported when a cluster is joined, never before.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from rollbook.book import Book
from rollbook.clusters.job_files import SubmissionOrder
from rollbook.core import Round, Settings
from rollbook.engine import ExitStatus, StartWorker, killed_exit_status
from rollbook.errors import ChildFailed, RayUnreachable, RollbookError, UsageError
from rollbook.models import list_secrets
from rollbook.processes import Child, module_argv

AUTO = "auto"
CONNECT_TIMEOUT_S = 10.0
NODES_POLL_S = 1.0
MIN_VERSION = (2, 41)
NAMESPACE = "rollbook"
INSTALL_HINT = "pip install 'rollbook[ray]'"


@contextmanager
def join_cluster(address: str) -> Iterator[RayCluster]:
    """Join a cluster for the duration of the context. A process that is in one already uses that, and stays in it."""
    ray = import_ray()
    if ray.is_initialized():
        yield RayCluster(ray, address)
        return
    # Ray reports the death of a node on standard output, where only our numbers belong.
    with redirect_stdout(sys.stderr):
        _connect(ray, address)
        try:
            yield RayCluster(ray, address)
        finally:
            ray.shutdown()


def import_ray() -> Any:
    """Import Ray, if it is installed and new enough."""
    try:
        ray = import_module("ray")
        version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    except (ImportError, AttributeError):
        raise RayUnreachable(f"--on ray: Ray is not installed here: {INSTALL_HINT}") from None
    if version < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise RayUnreachable(f"--on ray: Ray {ray.__version__} is too old, {least} is needed: {INSTALL_HINT}")
    return ray


def _connect(ray: Any, address: str) -> None:
    _check_reachable(os.environ.get("RAY_ADDRESS") or address if address == AUTO else address)
    join = partial(ray.init, address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        _keep_sigterm_handler(join)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise RayUnreachable(f"--address {address}: {' '.join(str(error).split())}") from None


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself would try for minutes."""
    if address == AUTO:
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        raise UsageError(f"--address {address}: give host:port of a cluster that this machine is part of, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise RayUnreachable(
            f"--address {address}: no Ray cluster answers there ({error}); name another with --on ray --address"
        ) from None


def _keep_sigterm_handler(init: Callable[[], object]) -> None:
    """Restore the handler of SIGTERM, which Ray replaces: ours drains."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        init()
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


class RayCluster:
    """A cluster that was joined."""

    def __init__(self, ray: Any, address: str = AUTO) -> None:
        self.ray = ray
        self._nodes: list[dict[str, float]] = []
        self._polled_at = -math.inf
        self.address: str = ray.get_runtime_context().gcs_address
        if address not in (AUTO, self.address) and not self._is_same_address(address):
            raise UsageError(f"--address {address}: this process is in the Ray cluster at {self.address} already")

    def _is_same_address(self, address: str) -> bool:
        host, _, port = address.rpartition(":")
        own_host, _, own_port = self.address.rpartition(":")
        try:
            return port == own_port and socket.gethostbyname(host) in (own_host, "127.0.0.1")
        except OSError:
            return False

    def has_room(self, order: SubmissionOrder) -> bool:
        """Return whether there is a node that is large enough for a worker, busy or not."""
        wanted = {"CPU": count_worker_cpus(order), "GPU": order.profile.gpus or 0}
        if time.monotonic() - self._polled_at > NODES_POLL_S:  # hundreds of workers may wait, and all of them ask
            self._nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            self._polled_at = time.monotonic()
        return any(all(node.get(name, 0) >= count for name, count in wanted.items()) for node in self._nodes)

    def check_room(self, order: SubmissionOrder) -> None:
        """Refuse workers that are too large for every node."""
        if not self.has_room(order):
            raise UsageError(f"no node of the Ray cluster at {self.address} has {describe_resources(order)}")


def count_worker_cpus(order: SubmissionOrder) -> int:
    """Return how many CPUs Ray reserves for a worker."""
    return 1 if order.profile.cpus is None else order.profile.cpus


def describe_resources(order: SubmissionOrder) -> str:
    """Return the resources of a worker in words."""
    gpus = f" and {order.profile.gpus} GPUs" if order.profile.gpus else ""
    return f"{count_worker_cpus(order)} CPUs{gpus}"


PATH_VARIABLE = "PYTHONPATH"


class ActorTask(msgspec.Struct, frozen=True):
    """The process of an actor. `environ` may hold secrets: it is sent as an argument, which Ray shows nowhere."""

    module: str
    run: str
    run_id: str
    number: int
    log: str
    environ: dict[str, str]
    pack: str = ""
    workdir: str = ""

    def __repr__(self) -> str:
        return f"ActorTask({self.module} {self.run} {self.number})"  # no secrets, wherever this is shown


class ProcessActor:
    """Runs the process of a task. The calls of an actor may arrive in any order."""

    def __init__(self) -> None:
        self._started = asyncio.Event()

    def start(self, task: ActorTask) -> str:
        """Start the process; return why that was impossible, empty if it was not."""
        try:
            self._problem = find_visibility_problem(task)
            if not self._problem:
                self._child = _start_process(task)
        except (ChildFailed, OSError) as error:
            self._problem = f"no worker could be started on the node {socket.gethostname()}: {error}"
        finally:
            self._started.set()
        return self._problem

    async def wait(self) -> tuple[int, str]:
        """Wait for the end of the process; return its exit code and the last line of its log."""
        await self._started.wait()
        if self._problem:
            return UsageError.exit_code, self._problem
        ended = asyncio.Event()
        self._child.call_on_exit(asyncio.get_running_loop(), ended.set)
        await ended.wait()
        assert self._child.returncode is not None
        return self._child.returncode, self._child.last_log_line()

    async def signal(self, number: int) -> None:
        """Send the process a signal."""
        await self._started.wait()
        if not self._problem:
            self._child.send_signal(signal.Signals(number))

    def end_with_it(self) -> None:
        """End this actor when the process ends; nothing waits for it any more."""
        ray = import_ray()
        me = ray.get_runtime_context().current_actor
        self._child.call_on_exit(asyncio.get_running_loop(), lambda: ray.kill(me))


def _start_process(task: ActorTask) -> Child:
    environ = {**os.environ, **task.environ}
    if task.pack:
        environ[PATH_VARIABLE] = os.pathsep.join(filter(None, (task.pack, environ.get(PATH_VARIABLE))))
    argv = module_argv(task.module, task.run, str(task.number))
    return Child(argv, env=environ, cwd=Path(task.workdir) if task.workdir else None, log=Path(task.log))


def find_visibility_problem(task: ActorTask) -> str:
    """Return why a run directory cannot be used from this node; empty if it can."""
    try:
        run_id = Book(task.run).manifest.run
    except (RollbookError, OSError):
        run_id = ""
    if run_id == task.run_id:
        return ""
    there = f"cannot be seen from the node {socket.gethostname()}"
    return f"{task.run} {there}: a run directory must be visible on every node of the cluster"


SERVER_FAILED_CODE = 69
"""The exit code of a worker whose servers do not run on its node: another node may be able to run them."""


NO_ROOM_TIMEOUT_S = 60.0
"""How long a worker waits in a cluster that has no node large enough for it: lost nodes may come back."""
LOST_CODE = -signal.SIGKILL
NOT_IMPORTED = "failed to import on the worker"


class RayWorkerHandle:
    """One actor and the worker in it."""

    def __init__(self, cluster: RayCluster, order: SubmissionOrder, task: ActorTask) -> None:
        self._cluster, self._order, ray = cluster, order, cluster.ray
        made = ray.remote(ProcessActor).options(
            num_cpus=count_worker_cpus(order),
            num_gpus=order.profile.gpus or 0,
            scheduling_strategy="SPREAD",
            max_restarts=0,
        )
        self._actor: Any = made.remote()
        self._started: Any = self._actor.start.remote(task)
        self._ended: Any = self._actor.wait.remote()
        self._no_room_since: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether the actor has not been started yet."""
        return not self._ready(self._started)

    def _ready(self, future: Any) -> bool:
        return bool(self._cluster.ray.wait([future], timeout=0)[0])

    def exit_status(self) -> ExitStatus | None:
        """Return how the worker ended; None before."""
        if not self._ready(self._ended):
            return self._check_room() if self.waiting else None
        try:
            _, (code, words) = self._cluster.ray.get([self._started, self._ended])
        except self._cluster.ray.exceptions.RayActorError as error:
            return ExitStatus(LOST_CODE, f"was lost ({explain_loss(str(error))})", replaceable=True)
        except self._cluster.ray.exceptions.RayError as error:
            return make_start_failure(str(error))
        finally:
            self.kill_now()
        if code < 0:
            return killed_exit_status(code)
        if code == SERVER_FAILED_CODE:
            return ExitStatus(code, f"gave up: {words}", replaceable=True)
        return ExitStatus(code, words)

    def _check_room(self) -> ExitStatus | None:
        if self._cluster.has_room(self._order):
            self._no_room_since = None
            return None
        self._no_room_since = self._no_room_since or time.monotonic()
        if time.monotonic() - self._no_room_since < NO_ROOM_TIMEOUT_S:
            return None
        self.kill_now()
        return ExitStatus(
            LOST_CODE,
            f"found no node with {describe_resources(self._order)} within {NO_ROOM_TIMEOUT_S:g} s",
            replaceable=True,
        )

    def signal(self, number: signal.Signals) -> None:
        """Send the worker a signal."""
        self._actor.signal.remote(int(number))

    def kill_now(self) -> None:
        """End the actor, and with it the worker."""
        self._cluster.ray.kill(self._actor)


def explain_loss(message: str) -> str:
    """Return Ray's reason for an actor's end, on one line.

    >>> explain_loss("The actor died.\\n\\tpid: 7\\nThe actor is dead because its node has died. Node Id: 3f")
    'The actor is dead because its node has died. Node Id: 3f'
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return next((line for line in lines if " because " in line), lines[0] if lines else "Ray gives no reason")


def make_start_failure(message: str) -> ExitStatus:
    """Return the exit status of an actor that could not start, with a reason that holds for all actors."""
    if NOT_IMPORTED in message:
        return ExitStatus(
            UsageError.exit_code, "a node of the Ray cluster cannot import rollbook: install it there too"
        )
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return ExitStatus(
        UsageError.exit_code, f"Ray could not start a worker: {lines[-1] if lines else 'it gives no reason'}"
    )


WORKER_MODULE = "rollbook.clusters.ray.worker"
DRIVER_MODULE = "rollbook.clusters.ray.driver"
JOB_CONFIG_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Where Ray looks for the runtime environment of a program that joins a cluster."""


def make_worker_factory(
    cluster: RayCluster, run: Path, number: int, order: SubmissionOrder, round_: Round
) -> StartWorker:
    """Return a function that starts the worker with a number."""

    def start(worker: int) -> RayWorkerHandle:
        log = run / "logs" / f"worker-{round_.number}-{worker}.log"
        return RayWorkerHandle(cluster, order, make_task(WORKER_MODULE, log))

    make_task = partial(make_actor_task, run, number, order, round_.settings)
    return start


def make_actor_task(
    run: Path, number: int, order: SubmissionOrder, settings: Settings, module: str, log: Path
) -> ActorTask:
    """Return the task of an actor, with the variables that it gets from this process: it has those of its node."""
    worker = order.profile.worker
    pack = str(run / "jobs" / "pack" / order.pack.name) if order.pack else ""
    names = [*order.profile.secrets, *list_secrets(settings)]
    environ = worker.environment | {name: os.environ[name] for name in names if name in os.environ}
    return ActorTask(module, str(run), Book(run).manifest.run, number, str(log), environ, pack, worker.workdir or "")


def make_runtime_variables(cluster: RayCluster) -> dict[str, str]:
    """Return the variables with which a program in an actor gives its own actors the runtime environment of ours."""
    runtime_env = dict(cluster.ray.get_runtime_context().runtime_env)
    return {JOB_CONFIG_VARIABLE: json.dumps({"runtime_env": runtime_env})} if runtime_env else {}
