"""Which replica a call goes to: that of its rollout, else that of its group while load allows, else by load.

There is no I/O and no clock here: the router asks for every call, and `benchmarks/routing.py` drives the same class in
a simulation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

from rollbook.core import Routing


class RoutedReplica(Protocol):
    """What a choice depends on: the name, on which all workers agree, and the calls that this worker has there."""

    base: str
    in_flight: int


R = TypeVar("R", bound=RoutedReplica)

MAX_REMEMBERED = 16_384
"""How many rollouts, and how many groups, are remembered; the ones used longest ago are forgotten first."""
MAX_LOAD = 1.5
"""A group leaves a replica that has so many times the mean load. Lower bounds split groups: `benchmarks/routing.py`."""
MIN_MAX_LOAD = 32
"""But not one that has fewer calls: a small batch takes hardly longer than a smaller one."""


class ReplicaChooser(Generic[R]):
    """Chooses replicas. A rollout stays on its replica, whatever the load: all its turns share a prefix.

    With affinity the samples of a group share a replica too, so that their prompt is computed once. A group ranks the
    replicas by rendezvous hashing and goes to the first one whose load is not above the mean: groups spread evenly, two
    workers often choose the same one without seeing each other, and the loss of a replica moves only its own groups.
    """

    def __init__(self, routing: Routing = "affinity") -> None:
        self._affinity = routing == "affinity"
        self._by_rollout: OrderedDict[str, R] = OrderedDict()
        self._by_group: OrderedDict[str, R] = OrderedDict()

    def choose(self, rollout: str, group: str, available: Sequence[R]) -> R:
        """Return one of the available replicas, of which there is at least one."""
        replica = self._by_rollout.get(rollout)
        if replica is None or replica not in available:
            replica = self._choose_new(rollout, group, available)
        self.remember(rollout, replica)
        return replica

    def remember(self, rollout: str, replica: R) -> None:
        """Keep a rollout on a replica."""
        _remember(self._by_rollout, rollout, replica)

    def _choose_new(self, rollout: str, group: str, available: Sequence[R]) -> R:
        if not (group and self._affinity):
            # Equal loads are no reason to prefer the first replica: every worker would.
            least = min(replica.in_flight for replica in available)
            equal = [replica for replica in available if replica.in_flight == least]
            return max(equal, key=partial(_rank, rollout))
        replica = self._choose_for_group(group, available)
        _remember(self._by_group, group, replica)
        return replica

    def _choose_for_group(self, group: str, available: Sequence[R]) -> R:
        mean = (sum(replica.in_flight for replica in available) + 1) / len(available)
        replica = self._by_group.get(group)
        if replica is not None and replica in available and replica.in_flight < max(MIN_MAX_LOAD, MAX_LOAD * mean):
            return replica
        below_mean = (each for each in available if each.in_flight < mean)  # with the new call in it: never empty
        return max(below_mean, key=partial(_rank, group))


def _rank(name: str, replica: RoutedReplica) -> bytes:
    """Return where a replica stands for a name: the same in every process, and unrelated to other names."""
    return blake2b(f"{name}\0{replica.base}".encode(), digest_size=8).digest()


def _remember(memory: OrderedDict[str, R], name: str, replica: R) -> None:
    memory[name] = replica
    memory.move_to_end(name)
    if len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)
