"""Asking on behalf of one rollout: with its seed, within the limits of the run, and again when only the call failed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from rollbook.collect.retry import backoff_s
from rollbook.core.failure import attempts_allowed
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Sampling
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.errors import LimitReached, RolloutFailed
from rollbook.models.model import Completion, Model

ASKED_AGAIN = ("model_unavailable", "model_timeout", "bad_completion", "nonfinite_logprobs")
"""Failures of one call that need not cost a conversation all its earlier turns."""


class Restart(Exception):
    """Start the attempt again from its prompt: no fault of the rollout, no attempt lost."""


class ModelClock(Protocol):
    """Where the seconds of model calls are added up."""

    model_s: float


class Asking:
    """What an agent asks its model with; see agents.agent.Ask."""

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        limits: Limits,
        rollout: Rollout,
        name: str,
        clock: ModelClock,
        *,
        budgets: Mapping[str, int],
        one_version: bool = False,
    ) -> None:
        self._model, self.sampling, self._limits = model, sampling, limits
        self._rollout, self._name, self._clock = rollout, name, clock
        self._budgets, self._one_version = budgets, one_version

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """One answer; LimitReached when the run allows no more."""
        rollout = self._rollout
        if len(rollout.turns) >= self._limits.max_turns:
            raise LimitReached("max_turns")
        sampling = self._within(extra)
        began = time.perf_counter()
        try:
            completion = await self._ask(messages, sampling, tools)
        finally:
            self._clock.model_s += time.perf_counter() - began
        if self._one_version and rollout.turns and rollout.turns[0].model_version != completion.turn.model_version:
            raise Restart
        self._check_counted(completion)
        return completion

    def _within(self, extra: Mapping[str, JSON] | None) -> Sampling:
        """The run's sampling with what the agent adds, and no more tokens than are left."""
        sampling, allowed = self.sampling, self._limits.max_tokens_total
        if extra:
            sampling = msgspec.structs.replace(sampling, extra={**extra, **sampling.extra})
        if allowed is None:
            return sampling
        left = allowed - sum(turn.completion_tokens for turn in self._rollout.turns)
        if left <= 0:
            raise LimitReached("max_tokens_total")
        return msgspec.structs.replace(sampling, max_tokens=min(left, sampling.max_tokens))

    async def _ask(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[JSON]) -> Completion:
        """Call until it is answered; before the first turn there is nothing to lose, and the attempt is repeated."""
        tries: Counter[str] = Counter()
        while True:
            try:
                return await self._model.complete(
                    messages, sampling, seed=self._rollout.seed, rollout=self._name, tools=tools
                )
            except RolloutFailed as error:
                tries[error.kind] += 1
                again = self._rollout.turns and error.kind in ASKED_AGAIN
                if not again or tries[error.kind] >= attempts_allowed(error.kind, self._budgets):
                    raise
                await asyncio.sleep(backoff_s(error, tries.total()))

    def _check_counted(self, completion: Completion) -> None:
        """A limit on tokens that nobody counts would be no limit."""
        if self._limits.max_tokens_total is None or completion.turn.completion_tokens:
            return
        if completion.message.text or completion.message.tool_calls:
            why = "the server does not count tokens, so --max-tokens-total cannot be kept"
            raise RolloutFailed("model_rejected", "model", why)
