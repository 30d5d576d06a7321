"""No model: others play the rollouts, with a model of theirs."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.core.json import JSON
from rollbook.core.manifest import ModelSpec, Sampling
from rollbook.core.message import Message
from rollbook.errors import RolloutFailed
from rollbook.models.model import Completion

REMOTE = ModelSpec("remote", "remote")


class AbsentModel:
    """Stands where a run has its model, and is never asked."""

    def __init__(self, spec: ModelSpec = REMOTE) -> None:
        self.spec = spec
        self.version: str | None = None

    async def open(self) -> None:
        """Nobody to connect to."""

    async def close(self) -> None:
        """Nothing is held."""

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        seed: int,
        rollout: str,
        tools: Sequence[JSON] = (),
    ) -> Completion:
        """Nobody is here to answer."""
        raise RolloutFailed("agent_error", "model", "this run has no model: its rollouts are played elsewhere")
