"""Servers of a NeMo Gym checkout, started for a run and ended with it: `gym:path/to/config.yaml`."""

from __future__ import annotations

from rollbook.core.json import JSON
from rollbook.wire.gym.driving.fleet import Fleet
from rollbook.wire.gym.driving.server import RemoteServer


class ManagedServer(RemoteServer):
    """The servers of a configuration. `data` are the rows; further arguments override the configuration."""

    description = "Servers of a NeMo Gym checkout, started for the run, gym:path/to/config.yaml; rows with --data."

    def __init__(self, name: str = "", data: str | None = None, **overrides: JSON) -> None:
        self._be(Fleet(name, overrides), data, f"gym:{name}")
