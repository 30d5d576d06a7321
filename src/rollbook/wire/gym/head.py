"""The head server's part: telling Gym's collector, and NeMo RL, where the servers are.

GET /global_config_dict_yaml   a JSON string that holds YAML: each instance with its host and port
GET /server_instances          the same as a list
"""

from __future__ import annotations

import os
import time

import yaml
from aiohttp import web

from rollbook.core.json import JSON
from rollbook.wire.gym.answering import said

IMPLEMENTATION = "rollbook"


class Head:
    """Speaks of one instance: the server whose application it is added to, as the client has reached it."""

    def __init__(self, name: str, kind: str, domain: str = "other") -> None:
        self._name, self._kind, self._domain = name, kind, domain
        self._since = time.time()

    def add_to(self, app: web.Application) -> None:
        """Answer on this application too."""
        app.router.add_get("/global_config_dict_yaml", self._config)
        app.router.add_get("/server_instances", self._instances)

    async def _config(self, request: web.Request) -> web.Response:
        return said(yaml.safe_dump(self.config(*_reached(request)), sort_keys=False))

    async def _instances(self, request: web.Request) -> web.Response:
        host, port = _reached(request)
        instance: dict[str, JSON] = {
            "process_name": self._name,
            "server_type": self._kind,
            "name": IMPLEMENTATION,
            "config_path": self._name,
            "dir_path": None,
            "entrypoint": "app.py",
            "host": host,
            "port": port,
            "url": f"http://{host}:{port}",
            "pid": os.getpid(),
            "start_time": self._since,
            "status": "success",
            "uptime_seconds": time.time() - self._since,
        }
        return said([instance])

    def config(self, host: str, port: int) -> dict[str, JSON]:
        """The merged configuration, as far as there is one."""
        own: dict[str, JSON] = {"entrypoint": "app.py", "host": host, "port": port}
        if self._kind == "resources_servers":
            own["domain"] = self._domain
        return {
            self._name: {self._kind: {IMPLEMENTATION: own}},
            "head_server": {"host": host, "port": port},
            "dry_run": False,
        }


def _reached(request: web.Request) -> tuple[str, int]:
    """The address by which this client knows us: the one that we listen on may mean nothing to it."""
    return str(request.url.host), int(request.url.port or 80)
