"""One attempt at one rollout: open the state, let the agent call the model, record the outcome, verify.

`ModelCaller` is what an agent calls its model with: with the rollout's seed, within the limits of the run, and again
when only the call failed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile

import msgspec

from rollbook.agents import Agent, choose_agent
from rollbook.book import KeyHistory, MediaStore, put_media_in
from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    Failure,
    Limits,
    Message,
    Rollout,
    Sampling,
    Task,
    Terms,
    Timing,
    ToolFormat,
    Turn,
    derive_seed,
    list_sources,
)
from rollbook.engine.retries import AttemptResult, record_failure, retry_delay_s, wait_for_event
from rollbook.engine.worker import RolloutJob
from rollbook.environments import EnvironmentRuntime, EnvironmentSession, SessionLost
from rollbook.errors import (
    ContainerError,
    ContextFull,
    ImageError,
    LimitReached,
    RollbookError,
    RolloutFailed,
    UsageError,
)
from rollbook.models import AnsweredCall, Completion, Model, ModelCall, TokenContinuingModel, require_continuing
from rollbook.processes import is_being_cancelled, timeout_after

MAX_EARLIER_CALLS = 8
"""How many calls of a rollout a later one may continue: an agent may have several conversations at once."""


class RestartAttempt(Exception):
    """Start the attempt again from its prompt: not the rollout's fault, so it costs no attempt."""


class ModelCaller:
    """Calls the model for an agent; see `rollbook.models.AskModel`.

    `group` is what the calls of all samples of a task have in common, by default the task.
    """

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        limits: Limits,
        rollout: Rollout,
        name: str,
        clock: AttemptClock,
        *,
        budgets: Mapping[str, int],
        one_version: bool = False,
        continues: TokenContinuingModel | None = None,
        draining: asyncio.Event | None = None,
        group: str = "",
        media: MediaStore | None = None,
    ) -> None:
        self._model, self.sampling, self._limits = model, sampling, limits
        self._rollout, self._name, self._clock = rollout, name, clock
        self._group, self._media = group or rollout.task.id, media
        self._budgets, self._one_version = budgets, one_version
        self._in_flight = 0
        self._continues, self._draining = continues, draining
        self._earlier_calls: deque[AnsweredCall] = deque(maxlen=MAX_EARLIER_CALLS)

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """Return one answer; LimitReached when the run allows no more."""
        rollout = self._rollout
        if len(rollout.turns) + self._in_flight >= self._limits.max_turns:
            raise LimitReached("max_turns")
        sampling = self._limit_sampling(messages, extra)
        began = time.perf_counter()
        self._in_flight += 1
        try:
            completion = await self._call_with_retries(messages, sampling, tools)
        finally:
            self._in_flight -= 1
            self._clock.model_s += time.perf_counter() - began
        if self._one_version and rollout.turns and rollout.turns[0].model_version != completion.turn.model_version:
            raise RestartAttempt
        self._check_token_count(completion)
        if self._overruns_response(completion.turn):
            raise LimitReached("max_response_tokens")  # without this answer, what exists so far fits
        if self._continues is not None:
            self._earlier_calls.append(AnsweredCall(messages, completion))
        return completion

    def _limit_sampling(self, messages: Sequence[Message], extra: Mapping[str, JSON] | None) -> Sampling:
        """Return the run's sampling with the agent's own values, and no more tokens than are left."""
        sampling, turns = self.sampling, self._rollout.turns
        if extra:
            sampling = sampling.override(extra)
        if self._limits.max_tokens_total is not None:
            used = sum(turn.completion_tokens for turn in turns)
            sampling = _leave_tokens(sampling, self._limits.max_tokens_total - used, "max_tokens_total")
        if self._limits.max_response_tokens is not None:
            used = _count_response(turns, turns[-1]) + _estimate_new_tokens(messages) if turns else 0
            sampling = _leave_tokens(sampling, self._limits.max_response_tokens - used, "max_response_tokens")
        return sampling

    def _overruns_response(self, turn: Turn) -> bool:
        """Return whether an answer is beyond the limit: what came before it can only be estimated before the call."""
        allowed = self._limits.max_response_tokens
        return allowed is not None and _count_response(self._rollout.turns, turn) > allowed

    async def _call_with_retries(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[JSON]
    ) -> Completion:
        """Call until there is an answer; before the first turn nothing is lost, and the whole attempt is repeated."""
        past: KeyHistory | None = None
        while True:
            try:
                return await self._call(messages, sampling, tools)
            except RolloutFailed as error:
                past = past or KeyHistory()  # made only when it is needed: this runs a thousand times a second
                out_of_budget = record_failure(past, error.kind, self._budgets)
                if not self._rollout.turns or not FAILURE_KINDS[error.kind].repeats_call or out_of_budget:
                    raise
                # Once the worker is drained nothing is waited for: the model gives up at once if no server answers.
                await wait_for_event(self._draining or asyncio.Event(), retry_delay_s(error, past))

    async def _call(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[JSON]) -> Completion:
        options: ModelCall = {
            "seed": self._rollout.seed,
            "rollout": self._name,
            "group": self._group,
            "tools": tools,
        }
        if list_sources(messages):
            # After an image nothing is continued in token ids, so that no earlier call is looked for.
            return await self._model.complete(await self._put_media_in(messages), sampling, **options)
        earlier = next((call for call in reversed(self._earlier_calls) if call.precedes(messages)), None)
        if earlier is None or self._continues is None:
            return await self._model.complete(messages, sampling, **options)
        return await self._continues.complete_from(earlier, messages, sampling, **options)

    async def _put_media_in(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages with the data of stored images and sounds; what cannot be sent fails the rollout."""
        try:  # in a thread: decoding and reading large images would block the loop
            return await asyncio.to_thread(put_media_in, messages, self._media)
        except UsageError as error:
            raise RolloutFailed("environment_error", "messages", str(error)) from None

    def _check_token_count(self, completion: Completion) -> None:
        """Refuse a server that does not count tokens: a limit on tokens would have no effect."""
        if self._limits.max_tokens_total is None or completion.turn.completion_tokens:
            return
        if completion.message.text or completion.message.tool_calls:
            why = "the server does not count tokens, so --max-tokens-total cannot be enforced"
            raise RolloutFailed("model_rejected", "model", why)


CHARACTERS_PER_TOKEN = 4


def _leave_tokens(sampling: Sampling, left: int, limit: str) -> Sampling:
    if left <= 0:
        raise LimitReached(limit)
    return sampling if left >= sampling.max_tokens else msgspec.structs.replace(sampling, max_tokens=left)


def _count_response(turns: Sequence[Turn], last: Turn) -> int:
    """Return how many tokens follow the first prompt up to the end of a turn."""
    first = turns[0] if turns else last
    return max(0, last.prompt_tokens + last.completion_tokens - first.prompt_tokens)


def _estimate_new_tokens(messages: Sequence[Message]) -> int:
    """Estimate the tokens of what was added after the model's last message."""
    new = takewhile(lambda message: message.role != "assistant", reversed(messages))
    return sum(len(message.text) for message in new) // CHARACTERS_PER_TOKEN


RESTARTS_ALLOWED = 16


class RolloutRunner:
    """Runs attempts; has everything that they share."""

    def __init__(
        self,
        model: Model,
        environments: Mapping[str, EnvironmentRuntime],
        agent: Agent | None,
        sampling: Sampling,
        limits: Limits,
        run_seed: int,
        *,
        restart_across_versions: bool = False,
        tool_format: ToolFormat = "native",
        budgets: Mapping[str, int] | None = None,
        continue_tokens: bool = False,
        draining: asyncio.Event | None = None,
        media: MediaStore | None = None,
    ) -> None:
        self._restart, self._draining, self._media = restart_across_versions, draining, media
        self._model, self._environments, self._budgets = model, environments, budgets or {}
        shared = Terms("", 1, sampling, limits, tool_format)
        self._terms = {name: environment.spec.terms or shared for name, environment in environments.items()}
        self._agents = {
            name: agent or choose_agent(environments[name].spec, terms.limits, terms.tool_format)
            for name, terms in self._terms.items()
        }
        self._run_seed = run_seed
        self._continues = require_continuing(model) if continue_tokens else None

    async def run_attempt(self, job: RolloutJob, round_number: int, *, verify: bool = True) -> AttemptResult:
        """Run one attempt to a score or a failure. Stopped and cancellation pass through: they write nothing.

        Without `verify` it ends with the conversation, which the caller may score.
        """
        for _ in range(RESTARTS_ALLOWED):
            rollout = self._new_rollout(job, round_number)
            clock = AttemptClock()
            error = None
            try:
                await self._converse_and_verify(rollout, job, clock, verify)
            except (SessionLost, RestartAttempt):
                continue
            except RolloutFailed as failed:
                error = failed
                rollout.failure = Failure.from_error(failed)
            rollout.timing = clock.timing()
            return rollout, error
        error = RolloutFailed("environment_error", "environment", f"its process was lost {RESTARTS_ALLOWED} times")
        rollout.failure = Failure.from_error(error)
        return rollout, error

    def _new_rollout(self, job: RolloutJob, round_number: int) -> Rollout:
        return Rollout(
            task=job.task,
            sample=job.sample,
            seed=derive_seed(self._run_seed, job.task.id, job.sample),
            round=round_number,
            attempt=job.past.attempts + 1,
            messages=job.task.messages,
            turns=[],
        )

    async def _converse_and_verify(self, rollout: Rollout, job: RolloutJob, clock: AttemptClock, verify: bool) -> None:
        environment = self._environments[job.task.env]
        in_session = environment.spec.container == "verify"
        await self._converse(environment, rollout, job, clock, verify and in_session)
        if verify and not in_session:
            await self._verify(environment, rollout, clock)

    async def _verify(
        self,
        environment: EnvironmentRuntime,
        rollout: Rollout,
        clock: AttemptClock,
        session: EnvironmentSession | None = None,
    ) -> None:
        began = time.perf_counter()
        try:
            rollout.score = await environment.verify(rollout.task, rollout, session, spent_s=clock.seconds)
        finally:
            clock.verify_s += time.perf_counter() - began

    async def _converse(
        self, environment: EnvironmentRuntime, rollout: Rollout, job: RolloutJob, clock: AttemptClock, verify: bool
    ) -> None:
        """Run from `open` to `outcome` within the rollout's deadline, which does not include closing the state.

        With `verify`, the rollout is scored before the state is closed: its container is needed for that.
        """
        session: EnvironmentSession | None = None
        seconds = self._terms[job.task.env].limits.rollout_s
        began = time.perf_counter()
        try:
            async with timeout_after(seconds) as deadline:
                session = await environment.open_session(job.task, job.name, rollout)
                clock.environment_s += time.perf_counter() - began - session.seconds
                await self._run_agent(session, rollout, job, clock)
                rollout.outcome = await session.outcome()
            if verify:
                await self._verify(environment, rollout, clock, session)
        except TimeoutError:
            if not deadline.expired():
                raise
            why = f"the rollout took longer than {seconds:g} s"
            raise RolloutFailed("rollout_timeout", "rollout", why) from None
        finally:
            if session is not None:
                clock.environment_s += session.seconds
                await environment.close_session(session)

    async def _run_agent(
        self, session: EnvironmentSession, rollout: Rollout, job: RolloutJob, clock: AttemptClock
    ) -> None:
        agent, terms = self._agents[job.task.env], self._terms[job.task.env]
        ask = ModelCaller(
            self._model,
            terms.sampling,
            task_limits(job.task, terms.limits),
            rollout,
            job.name,
            clock,
            budgets=self._budgets,
            one_version=self._restart,
            continues=self._continues,
            draining=self._draining,
            media=self._media,
        )
        try:
            await agent.play(rollout, ask, session)
        except ContextFull:
            rollout.turns.append(Turn(finish_reason="context_length"))
            rollout.ended = "context_length"
        except LimitReached as limit:
            rollout.ended = limit.which
        except ContainerError as error:
            kind = "image_error" if isinstance(error, ImageError) else "container_error"
            raise RolloutFailed(kind, type(agent).__name__, str(error)) from error
        except (RollbookError, RestartAttempt, SessionLost):
            raise
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            why = "awaited something that was cancelled"
            raise RolloutFailed("agent_error", type(agent).__name__, why) from None
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            raise RolloutFailed("agent_error", type(agent).__name__, why) from error


def task_limits(task: Task, limits: Limits) -> Limits:
    """Return the limits of the run, with fewer turns if the task allows fewer."""
    if task.max_turns is None or task.max_turns >= limits.max_turns:
        return limits
    return msgspec.structs.replace(limits, max_turns=task.max_turns)


class AttemptClock:
    """Where an attempt's seconds go. Plain numbers to add to, because this runs a thousand times a second."""

    __slots__ = ("_began", "_start", "environment_s", "model_s", "verify_s")

    def __init__(self) -> None:
        self._start, self._began = time.time(), time.perf_counter()
        self.environment_s = self.model_s = self.verify_s = 0.0

    @property
    def seconds(self) -> float:
        """How long the attempt has taken so far."""
        return time.perf_counter() - self._began

    def timing(self) -> Timing:
        """Return the record, rounded to the precision of a clock."""
        return Timing(
            round(self._start, 3),
            round(self.seconds, 6),
            round(self.model_s, 6),
            round(self.environment_s, 6),
            round(self.verify_s, 6),
        )
