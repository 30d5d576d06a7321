"""The one thing every model does: answer a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from rollbook.core.json import JSON
from rollbook.core.manifest import ModelSpec, Sampling
from rollbook.core.message import Message
from rollbook.core.turn import Turn


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
