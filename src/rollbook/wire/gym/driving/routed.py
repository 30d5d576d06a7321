"""All agents that a head server of NeMo Gym knows, as one environment: each row is played by the agent it names."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable

from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.ask import Ask
from rollbook.wire.gym.driving.address import address
from rollbook.wire.gym.driving.agent import RemoteAgent
from rollbook.wire.gym.driving.client import Client
from rollbook.wire.gym.driving.dataset import Dataset, agent_of
from rollbook.wire.gym.driving.discovery import agents_at
from rollbook.wire.gym.params import Params
from rollbook.wire.gym.row import AGENT


class RoutedAgents(RemoteAgent):
    """The agents of one head server. `data` are rows that name theirs in `agent_ref`; a lone agent plays all."""

    description = "The agents that a NeMo Gym head server knows, gym+head://host:port; rows with --data name theirs."

    def __init__(self, url: str, data: str | None = None) -> None:
        self._head = address(url, "gym+head")
        self._clients: dict[str, Client] = {}
        self._known: dict[str, str] = {}
        self._rows = Dataset(data, url, self._check, bare=True)

    def tasks(self) -> Iterable[Task]:
        """One a row; the head server is asked first, so that a row for nobody is refused with its line."""
        self._known = agents_at(self._head)
        return self._rows.tasks()

    def _check(self, task: Task, params: Params) -> None:
        name = agent_of(task)
        if name is None and len(self._known) == 1:
            task.fields = {**task.fields, AGENT: {"name": next(iter(self._known))}}
        elif name is None:
            raise UsageError(f"no {AGENT}, and there are {len(self._known)} agents: {', '.join(self._known)}")
        elif name not in self._known:
            close = difflib.get_close_matches(name, self._known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(self._known)}"
            raise UsageError(f"{AGENT}: no agent is called {name}; {hint}")

    async def start(self) -> None:
        """Ask the head server where its agents are."""
        await self._find()

    async def _find(self) -> None:
        """Learn the agents' addresses, again after one of them may have moved."""
        for name, base in (await asyncio.to_thread(agents_at, self._head)).items():
            known = self._clients.get(name)
            if known is None:
                self._clients[name] = Client(base)
                await self._clients[name].open()
            elif known.base != base:
                known.moved(base)

    async def stop(self) -> None:
        """Hang up."""
        for client in self._clients.values():
            await client.close()

    async def play(self, task: Task, rollout: Rollout, ask: Ask, state: dict[str, JSON]) -> None:
        """Let the agent that the row names play; one that cannot be reached is looked for again."""
        client = self._client_of(task)
        try:
            await super().play(task, rollout, ask, state)
        except RolloutFailed:
            if client.away:
                await self._look_again()
            raise

    async def _look_again(self) -> None:
        try:
            await self._find()
        except UsageError:  # nor can the head server be reached: the failure at hand says enough
            return

    def _client_of(self, task: Task) -> Client:
        name = str(agent_of(task))
        if name not in self._clients:
            raise RolloutFailed("agent_error", AGENT, f"the head server no longer knows an agent called {name}")
        return self._clients[name]
