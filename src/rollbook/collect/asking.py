"""Asking on behalf of one rollout: with its seed, within the limits of the run, and again when only the call failed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
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
from rollbook.models.continuing import Continues, Held
from rollbook.models.model import Completion, Model

ASKED_AGAIN = ("model_unavailable", "model_timeout", "bad_completion", "nonfinite_logprobs")
"""Failures of one call that need not cost a conversation all its earlier turns."""

MOST_HELD = 8
"""Calls of a rollout that a later one may go on from: an agent may lead several conversations side by side."""

SAMPLING = ("temperature", "top_p", "max_tokens")


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
        continues: Continues | None = None,
    ) -> None:
        self._model, self.sampling, self._limits = model, sampling, limits
        self._rollout, self._name, self._clock = rollout, name, clock
        self._budgets, self._one_version = budgets, one_version
        self._under_way = 0
        self._continues = continues
        self._held: deque[Held] = deque(maxlen=MOST_HELD)

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """One answer; LimitReached when the run allows no more."""
        rollout = self._rollout
        if len(rollout.turns) + self._under_way >= self._limits.max_turns:
            raise LimitReached("max_turns")
        sampling = self._within(extra)
        began = time.perf_counter()
        self._under_way += 1
        try:
            completion = await self._ask(messages, sampling, tools)
        finally:
            self._under_way -= 1
            self._clock.model_s += time.perf_counter() - began
        if self._one_version and rollout.turns and rollout.turns[0].model_version != completion.turn.model_version:
            raise Restart
        self._check_counted(completion)
        if self._continues is not None:
            self._held.append(Held(messages, completion))
        return completion

    def _within(self, extra: Mapping[str, JSON] | None) -> Sampling:
        """As the agent asks, else as the run has it; and no more tokens than are left."""
        sampling, allowed = self.sampling, self._limits.max_tokens_total
        if extra:
            own = {name: extra[name] for name in SAMPLING if name in extra}
            more = {name: value for name, value in extra.items() if name not in own}
            sampling = msgspec.structs.replace(sampling, **own, extra={**sampling.extra, **more})
        if allowed is None:
            return sampling
        left = allowed - sum(turn.completion_tokens for turn in self._rollout.turns)
        if left <= 0:
            raise LimitReached("max_tokens_total")
        return msgspec.structs.replace(sampling, max_tokens=min(left, sampling.max_tokens))

    async def _ask(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[JSON]) -> Completion:
        """Call until it is answered; before the first turn there is nothing to lose, and the attempt is repeated."""
        tries: Counter[str] | None = None
        while True:
            try:
                return await self._call(messages, sampling, tools)
            except RolloutFailed as error:
                tries = tries or Counter()  # made only when it is needed: this runs a thousand times a second
                tries[error.kind] += 1
                again = self._rollout.turns and error.kind in ASKED_AGAIN
                if not again or tries[error.kind] >= attempts_allowed(error.kind, self._budgets):
                    raise
                await asyncio.sleep(backoff_s(error, tries.total()))

    async def _call(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[JSON]) -> Completion:
        seed, name = self._rollout.seed, self._name
        held = next((one for one in reversed(self._held) if one.precedes(messages)), None)
        if held is None or self._continues is None:
            return await self._model.complete(messages, sampling, seed=seed, rollout=name, tools=tools)
        return await self._continues.go_on(held, messages, sampling, seed=seed, rollout=name, tools=tools)

    def _check_counted(self, completion: Completion) -> None:
        """A limit on tokens that nobody counts would be no limit."""
        if self._limits.max_tokens_total is None or completion.turn.completion_tokens:
            return
        if completion.message.text or completion.message.tool_calls:
            why = "the server does not count tokens, so --max-tokens-total cannot be kept"
            raise RolloutFailed("model_rejected", "model", why)
