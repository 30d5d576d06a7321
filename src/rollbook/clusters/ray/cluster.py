"""The Ray cluster that we join: the one this process is in already, or the one at an address."""

from __future__ import annotations

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
from typing import Any

from rollbook.clusters.order import Order
from rollbook.errors import UsageError

AUTO = "auto"
CONNECT_S = 10.0
LOOK_S = 1.0
LEAST = (2, 41)
NAMESPACE = "rollbook"
INSTALL = "pip install 'rollbook[ray]'"


class Unreachable(UsageError):
    """A Ray cluster that is not there, or that we cannot join."""


@contextmanager
def joined(address: str) -> Iterator[Cluster]:
    """A cluster for as long as the context is. Where this process is in one already, that one, which stays as it is."""
    ray = imported()
    if ray.is_initialized():
        yield Cluster(ray, address)
        return
    # Ray reports the death of a node on standard output, where only our numbers belong.
    with redirect_stdout(sys.stderr):
        _connect(ray, address)
        try:
            yield Cluster(ray, address)
        finally:
            ray.shutdown()


def imported() -> Any:
    """Ray itself, if it is here and new enough."""
    try:
        ray = import_module("ray")
        version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    except (ImportError, AttributeError):
        raise Unreachable(f"--on ray: Ray is not installed here: {INSTALL}") from None
    if version < LEAST:
        least = ".".join(map(str, LEAST))
        raise Unreachable(f"--on ray: Ray {ray.__version__} is too old, {least} is needed: {INSTALL}")
    return ray


def _connect(ray: Any, address: str) -> None:
    _check_answered(os.environ.get("RAY_ADDRESS") or address if address == AUTO else address)
    join = partial(ray.init, address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        _own_signals(join)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise Unreachable(f"--address {address}: {_one_line(error)}") from None


def _check_answered(address: str) -> None:
    """Ray itself would try for minutes."""
    if address == AUTO:
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        raise UsageError(f"--address {address}: give host:port of a cluster that this machine is part of, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise Unreachable(
            f"--address {address}: no Ray cluster answers there ({error}); name another with --on ray --address"
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _own_signals(init: Callable[[], object]) -> None:
    """Ray sets a handler of its own for SIGTERM; ours drain."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        init()
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


class Cluster:
    """A cluster that was joined."""

    def __init__(self, ray: Any, asked: str = AUTO) -> None:
        self.ray = ray
        self._nodes: list[dict[str, float]] = []
        self._looked = -math.inf
        self.address: str = ray.get_runtime_context().gcs_address
        if asked not in (AUTO, self.address) and not self._same(asked):
            raise UsageError(f"--address {asked}: this process is in the Ray cluster at {self.address} already")

    def _same(self, asked: str) -> bool:
        host, _, port = asked.rpartition(":")
        mine, _, own = self.address.rpartition(":")
        try:
            return port == own and socket.gethostbyname(host) in (mine, "127.0.0.1")
        except OSError:
            return False

    def has_room(self, order: Order) -> bool:
        """Whether there is a node that could hold a worker, be it busy or not."""
        wanted = {"CPU": cpus_of(order), "GPU": order.profile.gpus or 0}
        if time.monotonic() - self._looked > LOOK_S:  # hundreds of workers may wait, and all of them ask
            self._nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            self._looked = time.monotonic()
        return any(all(node.get(name, 0) >= count for name, count in wanted.items()) for node in self._nodes)

    def check_room(self, order: Order) -> None:
        """Refuse what no node could ever hold."""
        if not self.has_room(order):
            raise UsageError(f"no node of the Ray cluster at {self.address} has {room_of(order)}")


def cpus_of(order: Order) -> int:
    """The CPUs that Ray sets aside for a worker."""
    return 1 if order.profile.cpus is None else order.profile.cpus


def room_of(order: Order) -> str:
    """What a worker takes, in words."""
    gpus = f" and {order.profile.gpus} GPUs" if order.profile.gpus else ""
    return f"{cpus_of(order)} CPUs{gpus}"
