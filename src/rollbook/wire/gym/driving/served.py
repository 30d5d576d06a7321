"""A resources server that is spoken to, and where there is one for a task: at an address, or started by us."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from rollbook.core.json import JSON
from rollbook.core.task import Task
from rollbook.environments.environment import Environment
from rollbook.errors import RolloutFailed, UsageError
from rollbook.wire.gym.driving.client import Client
from rollbook.wire.gym.driving.dataset import Dataset, check_tools
from rollbook.wire.gym.params import Params

VERIFY, STEP = "/verify", "/step"
LOST = "the server was out of reach since this rollout began, and what it held for it may be gone"
GONE = "its session is over, and the server does not say that it scores without one (GET /reverify_mode)"


class Served(msgspec.Struct):
    """A server that was met. `stateless`: it says itself that its verdicts need no session."""

    client: Client
    stateless: bool = False

    async def meet(self, route: str) -> None:
        """Find somebody who answers and has this route; UsageError says who is there instead."""
        try:
            await self.client.get("/")
            routes = (await self.client.get("/openapi.json")).json()
            self.stateless = (await self.client.get("/reverify_mode")).json() == "stateless"
        except RolloutFailed as error:
            raise UsageError(f"{error.message}; is the server up?") from None
        paths = routes.get("paths") if isinstance(routes, dict) else None
        if isinstance(paths, dict) and (route not in paths or (route == VERIFY and STEP in paths)):
            raise UsageError(f"{self.client.base}: {_instead(paths, route)}")

    def check_held(self, era: str, where: str) -> None:
        """A server that was started again has lost the session, and some then judge an empty one without a word."""
        now = self.client.era
        if era == now or self.stateless:
            return
        if era.partition(".")[0] == now.partition(".")[0]:
            raise RolloutFailed("environment_error", where, LOST)
        raise RolloutFailed("verifier_error", where, GONE)


def _instead(paths: dict[str, JSON], route: str) -> str:
    if "/run" in paths:
        return "an agent, not a resources server; write gym+agent://host:port"
    if STEP in paths:
        return "its rollouts go step by step; write gym+step://host:port, or gym+step:config.yaml"
    if VERIFY in paths:
        return "its rollouts do not go step by step; write http://host:port, or gym:config.yaml"
    return f"no resources server: it has no {route}"


class Session(msgspec.Struct):
    """What one rollout has at a server: its cookies, and since when the server has been in reach."""

    served: Served
    era: str
    cookies: dict[str, str]


class Place(Protocol):
    """Where the servers of an environment are. `notes`: what is not as whoever set them up may think."""

    notes: list[str]

    def check(self, task: Task) -> None:
        """Refuse a task that there is no server for."""

    async def start(self, route: str) -> None:
        """Meet all servers; UsageError if one is not there, or lacks the route."""

    async def stop(self) -> None:
        """Let go of them."""

    async def up(self, task: Task) -> None:
        """Wait until the server of a task is there; RolloutFailed when it will not be."""

    def server_of(self, task: Task) -> Served:
        """The server of a task."""
        ...


class Alone:
    """One server at an address."""

    def __init__(self, base: str) -> None:
        self._served = Served(Client(base))
        self.notes: list[str] = []

    def check(self, task: Task) -> None:
        """It takes every task."""

    async def start(self, route: str) -> None:
        """Meet it."""
        await self._served.client.open()
        await self._served.meet(route)

    async def stop(self) -> None:
        """Hang up."""
        await self._served.client.close()

    async def up(self, task: Task) -> None:
        """It is there, or whoever asks it will hear so."""

    def server_of(self, task: Task) -> Served:
        """It."""
        return self._served


class Placed(Environment):
    """An environment whose tasks are rows and whose servers are somewhere. `route` is what they must have."""

    route = VERIFY

    def _be(self, place: Place, data: str | None, name: str) -> None:
        """What `__init__` does, once it is clear where the servers are."""
        self._place = place
        self._rows = Dataset(data, name, self._check, bare=self.route == STEP)

    def _check(self, task: Task, params: Params) -> None:
        check_tools(task, params)
        self._place.check(task)

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """What rows ask for and do not get."""
        return [*self._place.notes, *self._rows.notes]

    def tasks(self) -> Iterable[Task]:
        """One a row."""
        return self._rows.tasks()

    async def start(self) -> None:
        """Meet the servers."""
        await self._place.start(self.route)

    async def stop(self) -> None:
        """Let go of them."""
        await self._place.stop()
