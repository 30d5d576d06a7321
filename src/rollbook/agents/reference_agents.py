"""Agents that ask no model, for checking tasks in containers: `oracle` carries out the solution, `nop` does nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollbook.agents.agent import Agent, EnvironmentAccess
from rollbook.core import Rollout
from rollbook.environments import ContainerSession
from rollbook.models import AskModel


class Oracle:
    """Carries out the solution of the task: it must get the reward."""

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Run the solution."""
        assert isinstance(environment, ContainerSession)
        await environment.solve()


class Nop:
    """Does nothing: it must not get the reward."""

    async def play(self, rollout: Rollout, ask: AskModel, environment: EnvironmentAccess) -> None:
        """Do nothing."""


REFERENCE_AGENTS: Mapping[str, Callable[[], Agent]] = {"oracle": Oracle, "nop": Nop}
