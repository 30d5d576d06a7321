"""`RoleClient`: the model of a role, opened once and used by all rollouts. What goes wrong is a failure of the role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    JUDGE,
    Message,
    ModelSpec,
    RoleSettings,
    RoleSpec,
    Sampling,
    Settings,
    TokenCounts,
    Turn,
    default_key_variable,
    parse_price,
)
from rollbook.errors import ContextFull, EndpointDown, EndpointRefused, RolloutFailed, UsageError
from rollbook.models import ENDPOINT_KINDS, Completion, is_provider_target, open_model, probe_endpoint

T = TypeVar("T")

EMBEDDED = "embedded"
"""The target that names the embedded model as the model of a role."""
KEY_ADVICE = f"the key goes into {Settings().api_key_env}"
"""The whole advice: a provider's variable may have the same name, and is not that of a role."""
OPENING_S = 30.0
"""How long the model of a role may be unreachable before the first rollout; later `--outage` is the limit."""
CALL_TRIES = 3
CALL_DELAY_S = 1.0
"""How often a call is made before the whole attempt fails, and how long the second one waits; the third, twice that."""
OTHER_PROMPT, OTHER_TOKENS = "Hello", 16
"""A call that every model can answer."""
MAX_DELAY_S = 30.0
"""How long a server may ask to wait before the next try."""


class RoleWording:
    """Rewrites messages about the model of a run, and the options they name, as messages about a role."""

    def __init__(self, role: str, options: Mapping[str, str] | None = None) -> None:
        self.role = role
        self._label = role if role == JUDGE else f"role {role}"
        self._options = options or {
            "--model-name ": f"--role {role}.name=",
            "--model-name": f"--role {role}.name",
            "--api-key-env": f"--role {role}.key_env",
            "--sampling ": f"--role {role}.sampling.",
            "--sampling": f"--role {role}.sampling",
            "--header ": f"--role {role}.headers.",
            "with -m": f"with --role {role}",
            "-m ": f"--role {role}=",
            KEY_ADVICE: f"the key goes into {default_key_variable(role)}",
        }

    def rename(self, message: str) -> str:
        """Return advice about the model as advice about the role."""
        for theirs, ours in self._options.items():
            message = message.replace(theirs, ours)
        return message

    def refuse(self, error: UsageError) -> UsageError:
        """Return an error of the model as an error of the role."""
        message = self.rename(str(error))
        own = f"--{self.role}" if self.role == JUDGE else f"--role {self.role}"
        return UsageError(message if message.startswith(own) else f"{self._label}: {message}")

    def explain(self, work: Callable[[], T]) -> T:
        """Run a function; its errors name the options of the role, not those of the model."""
        try:
            return work()
        except UsageError as error:
            raise self.refuse(error) from None


def list_targets(given: Sequence[str]) -> list[str]:
    """Return the targets of a role as those of -m, which has none for the embedded model.

    >>> list_targets(["embedded"])
    []
    """
    return [] if list(given) == [EMBEDDED] else list(given)


def make_model_settings(role: str, given: RoleSettings, settings: Settings) -> Settings:
    """Return the settings of a run as those of the model of a role.

    A provider has a key variable of its own; the key of an endpoint is in USER_API_KEY for the role user.
    """
    usual = Settings().api_key_env if is_provider_target(given.urls) else default_key_variable(role)
    return msgspec.structs.replace(
        settings,
        urls=given.urls,
        base_urls=[],
        api_key_env=given.key_env or usual,
        headers=given.headers,
        wire_names=given.wire_names,
    )


class RoleClient:
    """The model of a role; `own` are the settings of its model."""

    def __init__(
        self,
        role: str,
        spec: RoleSpec,
        own: Settings,
        *,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        price: str = "",
        wording: RoleWording | None = None,
    ) -> None:
        self.role, self._meaning, self._sampling = role, spec, sampling
        self._price = parse_price(price) if price else None
        self._wording = wording or RoleWording(role)
        self._settings = own
        self._model = self._wording.explain(lambda: open_model(spec.model, self._settings))

    @property
    def spec(self) -> ModelSpec:
        """Its model; with its name once it is open."""
        return self._model.spec

    @property
    def meaning(self) -> RoleSpec:
        """What the role means: its model, with its name once it is open, and its sampling."""
        return msgspec.structs.replace(self._meaning, model=self.spec)

    async def probe(self, wait_s: float, say: Callable[[str], None]) -> dict[str, str]:
        """Ask one completion before a run starts; a UsageError says why there is none.

        Return the names of parameters that it has turned out to take.
        """
        if self.spec.kind not in ENDPOINT_KINDS:
            return {}
        sampling = self._choose_sampling({})

        def say_of_role(line: str) -> None:
            say(f"{self.role}: {line}")

        try:
            probed = await probe_endpoint(self.spec, self._settings, sampling, wait_s=wait_s, say=say_of_role)
            return probed.wire_names
        except UsageError as error:
            raise self._wording.refuse(error) from None

    async def open(self) -> None:
        """Connect to it; one that cannot be reached is refused before any rollout starts."""
        giving_up = asyncio.get_running_loop().call_later(OPENING_S, self._model.stop_waiting)
        try:
            await self._model.open()
        except UsageError as error:
            raise self._wording.refuse(error) from None
        except EndpointDown as error:
            raise UsageError(f"{self._subject} is not reachable: {error.reasons}; check its address") from None
        finally:
            giving_up.cancel()

    async def close(self) -> None:
        """Close its connections."""
        await self._model.close()

    def stop_waiting(self) -> None:
        """Let calls that wait for it give up at once."""
        self._model.stop_waiting()

    def describe_outage(self) -> str:
        """Return how long it has not answered, and why; empty while it does."""
        outage = self._model.describe_outage()
        return f"{self._subject}: {outage}" if outage else ""

    @property
    def _subject(self) -> str:
        return f"the model of the role {self.role}"

    def compute_cost(self, turn: Turn) -> float | None:
        """Return what a call cost; None without a price."""
        if self._price is None:
            return None
        return self._price.cost(TokenCounts(turn.prompt_tokens, turn.cached_tokens or 0, turn.completion_tokens))

    async def complete(
        self, messages: Sequence[Message], sampling: Mapping[str, JSON], seed: int, rollout: str
    ) -> Completion:
        """Return one answer. A call that failed on the way is made again; after that the failure is a role_error.

        A model that answers nobody is an outage, as it is of the policy: it costs no attempt, and ends the run with
        EndpointDown when it lasts too long.
        """
        try:
            return await self.call_until_answered(messages, self._choose_sampling(sampling), seed, rollout)
        except RolloutFailed as error:
            raise self._make_failure(error.message, error.retry_after_s) from None
        except ContextFull as error:  # not the context of the policy: it must not end the conversation
            raise self._make_failure(f"its context has no room for the messages: {error}") from None
        except UsageError as error:
            raise self._make_failure(str(error)) from None

    async def call_until_answered(
        self, messages: Sequence[Message], sampling: Sampling, seed: int, rollout: str
    ) -> Completion:
        """Return one answer, or raise what the last try failed with; while nobody is answered, wait and try again."""
        while True:
            try:
                return await self._call_with_retries(messages, sampling, seed, rollout)
            except RolloutFailed as error:
                if error.kind != "model_unavailable" or await self._answers(rollout):
                    raise
            except EndpointDown as error:
                raise self._name_outage(error) from None

    async def _call_with_retries(
        self, messages: Sequence[Message], sampling: Sampling, seed: int, rollout: str
    ) -> Completion:
        for number in range(1, CALL_TRIES + 1):
            try:
                return await self._model.complete(messages, sampling, seed=seed, rollout=rollout)
            except RolloutFailed as error:
                if number == CALL_TRIES or not FAILURE_KINDS[error.kind].repeats_call:
                    raise
                await asyncio.sleep(min(error.retry_after_s or CALL_DELAY_S * number, MAX_DELAY_S))
        raise AssertionError("unreachable")

    async def _answers(self, rollout: str) -> bool:
        """Return whether it answers another prompt, so that the one that it does not answer is the cause.

        EndpointDown once no call was answered for as long as an outage may last.
        """
        sampling = msgspec.structs.replace(self._choose_sampling({}), max_tokens=OTHER_TOKENS)
        try:
            await self._model.complete([Message("user", OTHER_PROMPT)], sampling, seed=0, rollout=rollout)
        except RolloutFailed as error:
            return error.kind != "model_unavailable"
        except EndpointDown as error:
            raise self._name_outage(error) from None
        return True

    def _choose_sampling(self, given: Mapping[str, JSON]) -> Sampling:
        """Return the sampling of a call: what the environment gives, then what the run sets; null omits one."""
        own = self._meaning.sampling
        omitted = {name: None for name, value in own.items() if value is None}
        base = msgspec.structs.replace(self._sampling, extra={**self._sampling.extra, **omitted})
        return base.override(given).override({name: value for name, value in own.items() if value is not None})

    def _name_outage(self, error: EndpointDown) -> EndpointDown:
        """Return an outage with the name of the role."""
        if isinstance(error, EndpointRefused):
            return EndpointRefused(self._describe(str(error)), error.reasons, error.statuses)
        return EndpointDown(self._describe(str(error)), error.reasons)

    def _describe(self, why: str) -> str:
        return f"{self._subject}: {self._wording.rename(why)}"

    def _make_failure(self, why: str, retry_after_s: float | None = None) -> RolloutFailed:
        return RolloutFailed("role_error", f"role {self.role}", self._describe(why), retry_after_s=retry_after_s)
