"""What every model does: answer a conversation; and how agents and environments ask one for a rollout.

A model never invents: what the server did not report is None, or a RolloutFailed. `AbsentModel` stands in where a run
has no model of its own, because its rollouts are carried out elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from rollbook.core import JSON, Message, ModelSpec, Sampling, Turn
from rollbook.errors import RolloutFailed


class Completion(msgspec.Struct, frozen=True):
    """What the model said, and the turn that records how."""

    message: Message
    turn: Turn


class Model(Protocol):
    """Someone who answers.

    `complete` raises RolloutFailed (with a kind of core/failure.py) when no answer came, ContextFull when the prompt
    does not fit, EndpointDown when nobody has answered for the whole outage allowance; `rollout` names the rollout, so
    that its turns may stay on one replica. `version` is stamped on every turn; whoever changes the weights sets it.
    """

    spec: ModelSpec
    version: str | None

    async def open(self) -> None:
        """Connect, find the served name, learn what the server can report."""

    async def close(self) -> None:
        """Let go of every connection and process."""

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        seed: int,
        rollout: str,
        tools: Sequence[JSON] = (),
    ) -> Completion:
        """Answer once."""
        ...


class AskModel(Protocol):
    """Ask the model once, with the rollout's own sampling and seed.

    ContextFull and LimitReached end the conversation and are let through: what there is of it is scored.
    """

    sampling: Sampling

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """One answer. `tools` are offered by the server's own fields, `extra` is further sampling."""
        ...


REMOTE_MODEL_SPEC = ModelSpec("remote", "remote")


class AbsentModel:
    """Stands where a run has its model, and is never asked."""

    def __init__(self, spec: ModelSpec = REMOTE_MODEL_SPEC) -> None:
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
