"""A worker as its crew sees it, where it is an actor."""

from __future__ import annotations

import signal
import time
from typing import Any

from rollbook.clusters.order import Order
from rollbook.clusters.ray.cluster import Cluster, cpus_of, room_of
from rollbook.clusters.ray.post import Errand, Post
from rollbook.clusters.ray.worker import UNFIT
from rollbook.collect.crew import Fate, killed
from rollbook.errors import UsageError

PATIENCE_S = 60.0
"""How long a worker waits in a cluster none of whose nodes could hold it: lost nodes may come back."""
LOST = -signal.SIGKILL
NOT_IMPORTED = "failed to import on the worker"


class RayHand:
    """One actor and the worker in it."""

    def __init__(self, cluster: Cluster, order: Order, errand: Errand) -> None:
        self._cluster, self._order, ray = cluster, order, cluster.ray
        made = ray.remote(Post).options(
            num_cpus=cpus_of(order), num_gpus=order.profile.gpus or 0, scheduling_strategy="SPREAD", max_restarts=0
        )
        self._actor: Any = made.remote()
        self._begun: Any = self._actor.start.remote(errand)
        self._over: Any = self._actor.wait.remote()
        self._homeless: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether the actor has not been started yet."""
        return not self._ready(self._begun)

    def _ready(self, promised: Any) -> bool:
        return bool(self._cluster.ray.wait([promised], timeout=0)[0])

    def fate(self) -> Fate | None:
        """How the worker ended; None before."""
        if not self._ready(self._over):
            return self._without_room() if self.waiting else None
        try:
            _, (code, words) = self._cluster.ray.get([self._begun, self._over])
        except self._cluster.ray.exceptions.RayActorError as error:
            return Fate(LOST, f"was lost ({why_lost(str(error))})", lost=True)
        except self._cluster.ray.exceptions.RayError as error:
            return broken(str(error))
        finally:
            self.kill_now()
        if code < 0:
            return killed(code)
        return Fate(code, f"gave up: {words}", lost=True) if code == UNFIT else Fate(code, words)

    def _without_room(self) -> Fate | None:
        if self._cluster.has_room(self._order):
            self._homeless = None
            return None
        self._homeless = self._homeless or time.monotonic()
        if time.monotonic() - self._homeless < PATIENCE_S:
            return None
        self.kill_now()
        return Fate(LOST, f"found no node with {room_of(self._order)} within {PATIENCE_S:g} s", lost=True)

    def signal(self, number: signal.Signals) -> None:
        """Send the worker a signal."""
        self._actor.signal.remote(int(number))

    def kill_now(self) -> None:
        """End the actor, and with it the worker."""
        self._cluster.ray.kill(self._actor)


def why_lost(said: str) -> str:
    """What Ray says of an actor's end, on one line.

    >>> why_lost("The actor died unexpectedly.\\n\\tpid: 7\\nThe actor is dead because its node has died. Node Id: 3f")
    'The actor is dead because its node has died. Node Id: 3f'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if " because " in line), lines[0] if lines else "Ray does not say why")


def broken(said: str) -> Fate:
    """An actor that could not even begin: what all of them would say."""
    if NOT_IMPORTED in said:
        return Fate(UsageError.exit_code, "a node of the Ray cluster cannot import rollbook: install it there too")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return Fate(UsageError.exit_code, f"Ray could not start a worker: {lines[-1] if lines else 'it does not say why'}")
