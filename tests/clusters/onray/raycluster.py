"""A Ray cluster of several nodes on one machine: a head without CPUs, so that no worker is on it, and others beside."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    try:
        from ray.cluster_utils import Cluster  # noqa: F401
    except ImportError:
        return "Ray is not installed (pip install 'rollbook[ray]')"
    return ""


class RayCluster:
    """Two nodes for three workers each; more can be added, and any of them killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.add(num_cpus=3), self.add(num_cpus=3)]

    @property
    def address(self) -> str:
        """Where it is."""
        found: str = self._cluster.address
        return found

    @property
    def session(self) -> Path:
        """Where its own logs are."""
        return Path(self._cluster.head_node.get_session_dir_path(), "logs")

    def add(self, **resources: object) -> Any:
        """One more node."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._cluster.add_node(**resources)

    def kill(self, node: Any) -> None:
        """Kill a node's daemon, and with it what runs there."""
        (raylet,) = node.all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGKILL)
        self.remove(node)

    def remove(self, node: Any) -> None:
        """Clear away what is left of a node."""
        self._cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        """End all of it."""
        self._cluster.shutdown()


def workers_of(run: Path) -> dict[int, int]:
    """The processes of a run's workers, each with the actor that keeps it."""
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"rollbook.clusters.ray.worker" in words and os.fsencode(run) in words:
                found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found
