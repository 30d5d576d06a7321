"""`RoleCaller`: asks the models of roles for one rollout, with seeds of its own, and records every call in it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from rollbook.book import MediaStore, put_media_in
from rollbook.core import (
    JSON,
    JUDGE,
    Message,
    RoleCall,
    Rollout,
    check_extra_sampling,
    check_sampling_values,
    derive_role_seed,
    has_media,
)
from rollbook.environments.answers.extraction import strip_thinking
from rollbook.environments.calls import ModelAnswer, ModelAsk
from rollbook.environments.roles.client import RoleClient
from rollbook.errors import BookError, EndpointDown, RolloutFailed, UsageError
from rollbook.models import Completion
from rollbook.processes import timeout_after

T = TypeVar("T")

MAX_CALLS = 1000
"""How many calls of roles one rollout may make: an environment that asks in a loop must come to an end."""


class FindClient(Protocol):
    """Finds the model of a role."""

    def find(self, role: str) -> RoleClient | None:
        """Return it; None if the run has none."""
        ...


class RoleCaller:
    """Asks for one rollout. `in_verification`: its calls are made to score the rollout.

    `allowed_s` is how long its calls may take in all, where nothing else limits the time of the rollout. `media` has
    the images and sounds that messages refer to.
    """

    def __init__(
        self,
        clients: FindClient | None,
        rollout: Rollout,
        *,
        in_verification: bool = False,
        allowed_s: float = math.inf,
        media: MediaStore | None = None,
    ) -> None:
        self._clients, self._rollout, self._in_verification = clients, rollout, in_verification
        self._allowed_s, self._media = allowed_s, media
        self._numbers = Counter(call.role for call in rollout.role_calls)
        self._failure: RolloutFailed | EndpointDown | BookError | None = None
        self._in_flight, self._since, self._asked_s = 0, 0.0, 0.0

    @property
    def recorded(self) -> list[RoleCall]:
        """The calls of the rollout so far."""
        return list(self._rollout.role_calls)

    @property
    def asked_s(self) -> float:
        """How many seconds have passed in calls so far; concurrent calls count once."""
        return self._asked_s + (time.perf_counter() - self._since if self._in_flight else 0.0)

    def check_failure(self, where: str) -> None:
        """Raise the failure of an earlier call: environment code that catches it must not make a score of it."""
        if isinstance(self._failure, RolloutFailed):
            raise RolloutFailed(self._failure.kind, where, self._failure.message)
        if self._failure is not None:  # it concerns all rollouts
            raise self._failure

    async def limit_time(self, role: str, calls: Awaitable[T]) -> T:
        """Await calls of a role, for as long as the calls of the rollout may still take."""
        left_s = self._allowed_s - self.asked_s
        if left_s == math.inf:
            return await calls
        deadline = timeout_after(max(left_s, 0.0))
        try:
            async with deadline:
                return await calls
        except TimeoutError:
            if not deadline.expired():
                raise
            why = f"the rollout took longer than --timeout: it waited for the model of the role {role}"
            raise RolloutFailed("rollout_timeout", "verify", why) from None

    async def ask(self, role: str, messages: Sequence[Message], sampling: Mapping[str, JSON]) -> RoleCall:
        """Return the recorded call; RolloutFailed if there is no answer, EndpointDown if the run has to stop."""
        check_role_sampling(role, sampling)
        if not self._in_flight:
            self._since = time.perf_counter()
        self._in_flight += 1
        try:
            return await self.limit_time(role, self._ask(role, messages, sampling))
        except (RolloutFailed, EndpointDown, BookError) as error:
            self._failure = self._failure or error
            raise
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._asked_s += time.perf_counter() - self._since

    async def _ask(self, role: str, messages: Sequence[Message], sampling: Mapping[str, JSON]) -> RoleCall:
        client = self._clients.find(role) if self._clients else None
        if client is None:
            why = f"the run has no model for the role {role}: give --role {role}=URL"
            raise RolloutFailed("role_error", f"role {role}", why)
        number = self._numbers[role]
        self._numbers[role] += 1
        if self._numbers.total() > MAX_CALLS:
            why = f"the rollout asked models of roles more than {MAX_CALLS} times"
            raise RolloutFailed("environment_error", f"role {role}", why)
        seed = derive_role_seed(self._rollout.seed, role, number)
        name = f"{self._rollout.task.id}#{self._rollout.sample}"
        began = time.perf_counter()
        shown = await self._put_media_in(role, messages)
        try:
            completion = await client.complete(shown, sampling, seed, name)
        except RolloutFailed as error:
            raise self._name_judge(role, error) from None
        call = make_role_call(client, completion, number, seed, began, self._in_verification)
        self._rollout.role_calls.append(call)
        return call

    async def _put_media_in(self, role: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages with the data of stored images and sounds."""
        if not has_media(messages):
            return messages
        try:  # in a thread: decoding and reading large images would block the loop
            return await asyncio.to_thread(put_media_in, messages, self._media)
        except UsageError as error:
            raise RolloutFailed("environment_error", f"role {role}", f"the role {role} was asked: {error}") from None

    def _name_judge(self, role: str, error: RolloutFailed) -> RolloutFailed:
        """Return the failure of a judge that scores as judge_error: `reverify` can score such a rollout."""
        if role != JUDGE or not self._in_verification:
            return error
        return RolloutFailed("judge_error", "judge", error.message, retry_after_s=error.retry_after_s)

    async def answer(self, ask: ModelAsk) -> ModelAnswer:
        """Answer the question of an environment process."""
        try:
            return ModelAnswer("", "", await self.ask(ask.role, ask.messages, ask.sampling))
        except RolloutFailed as error:
            return ModelAnswer(error.kind, error.message)
        except (
            EndpointDown,
            BookError,
        ) as error:  # the run stops: `check_failure` raises it once the call of the process ends
            return ModelAnswer("role_error", str(error))
        except UsageError as error:
            return ModelAnswer("environment_error", str(error))


def check_role_sampling(role: str, sampling: Mapping[str, JSON]) -> None:
    """Refuse parameters that Rollbook sets itself, and values that no model can be asked with."""
    check_sampling_values(sampling, f"the role {role} was asked with ")
    extra = {name: value for name, value in sampling.items() if name not in ("temperature", "top_p", "max_tokens")}
    check_extra_sampling(extra, f"the role {role} was asked with")


def make_role_call(
    client: RoleClient, completion: Completion, number: int, seed: int, began: float, in_verification: bool
) -> RoleCall:
    """Return the record of a call that was answered."""
    turn, cost = completion.turn, client.compute_cost(completion.turn)
    call = RoleCall(
        client.role,
        number,
        seed,
        strip_thinking(completion.message.text).strip(),
        turn.prompt_tokens,
        turn.completion_tokens,
        round(time.perf_counter() - began, 6),
        turn.finish_reason,
        in_verification,
    )
    return call if cost is None else msgspec.structs.replace(call, cost=round(cost, 9))
