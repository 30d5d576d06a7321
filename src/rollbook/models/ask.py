"""Asking the model of one rollout: what agents ask with, and environments that play their rollouts themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rollbook.core.json import JSON
from rollbook.core.manifest import Sampling
from rollbook.core.message import Message
from rollbook.models.model import Completion


class Ask(Protocol):
    """Ask the model once, with the rollout's own sampling and seed.

    ContextFull and LimitReached end the conversation and are let through: what there is of it is scored.
    """

    sampling: Sampling

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """One answer. `tools` are offered by the server's own fields, `extra` is further sampling."""
        ...
