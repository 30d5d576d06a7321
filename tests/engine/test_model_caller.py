"""The calls of one rollout, with a model that pretends: their limits, their retries, and what they continue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollbook.book import KeyHistory
from rollbook.core import EnvironmentSpec, Limits, Message, Rollout, Sampling, Score, Task, Turn, derive_seed
from rollbook.engine import rollout_runner as module
from rollbook.engine.rollout_runner import AttemptClock, ModelCaller, RestartAttempt, RolloutRunner
from rollbook.engine.worker import RolloutJob
from rollbook.environments import SessionLost
from rollbook.errors import ContainerError, ContextFull, ImageError, LimitReached, RolloutFailed
from rollbook.models import Completion
from support.pictures import data_url, make_png

ASK = [Message("user", "What is 1 + 1?")]


class Model:
    """Answers from a list of turns or errors, and keeps what was asked."""

    def __init__(self, *answers: Turn | Exception, text: str = "2") -> None:
        self.answers, self.text = list(answers), text
        self.samplings: list[Sampling] = []
        self.options: list[dict[str, Any]] = []
        self.continued: list[Any] = []

    async def complete(self, messages: Any, sampling: Sampling, **options: Any) -> Completion:
        self.samplings.append(sampling)
        self.options.append(options)
        answer = self.answers.pop(0)
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return Completion(Message("assistant", self.text), answer)

    async def complete_from(self, earlier: Any, messages: Any, sampling: Sampling, **options: Any) -> Completion:
        self.continued.append(earlier)
        return await self.complete(messages, sampling, **options)


def make_caller(
    model: Model, limits: Limits | None = None, turns: list[Turn] | None = None, **more: Any
) -> ModelCaller:
    rollout = Rollout(task=Task("t", "What is 1 + 1?"), sample=3, seed=77, turns=list(turns or []))
    options = {"budgets": {}, **more}
    return ModelCaller(model, Sampling(max_tokens=100), limits or Limits(), rollout, "t#3", AttemptClock(), **options)  # type: ignore[arg-type]


def tokens(prompt: int, completion: int, version: str | None = None) -> Turn:
    return Turn(prompt_tokens=prompt, completion_tokens=completion, model_version=version)


def ask(caller: ModelCaller, messages: list[Message] | None = None, **more: Any) -> Completion:
    return asyncio.run(caller(messages or ASK, **more))


def test_a_call_has_the_seed_the_name_and_the_group_of_its_rollout() -> None:
    model = Model(tokens(1, 1), tokens(1, 1))
    ask(make_caller(model), tools=[{"name": "add"}])
    ask(make_caller(model, group="other"))
    assert model.options == [
        {"seed": 77, "rollout": "t#3", "group": "t", "tools": [{"name": "add"}]},
        {"seed": 77, "rollout": "t#3", "group": "other", "tools": ()},
    ]


def test_turns_of_two_versions_are_one_rollout_unless_one_version_is_required() -> None:
    model, before = Model(tokens(1, 1, "b"), tokens(1, 1, "b")), [tokens(1, 1, "a")]
    assert ask(make_caller(model, turns=before)).turn.model_version == "b"
    with pytest.raises(RestartAttempt):
        ask(make_caller(model, turns=before, one_version=True))


@pytest.mark.parametrize(("turns", "allowed"), [(1, True), (2, False), (3, False)])
def test_turns_are_limited(turns: int, allowed: bool) -> None:
    caller = make_caller(Model(tokens(1, 1)), Limits(max_turns=2), [tokens(1, 1)] * turns)
    if allowed:
        ask(caller)
    else:
        with pytest.raises(LimitReached, match="max_turns"):
            ask(caller)


def test_calls_in_flight_count_as_turns() -> None:
    async def go() -> None:
        caller = make_caller(Model(tokens(1, 1), tokens(1, 1)), Limits(max_turns=1))
        first = asyncio.create_task(caller(ASK))
        await asyncio.sleep(0)
        with pytest.raises(LimitReached, match="max_turns"):
            await caller(ASK)
        await first
        await caller(ASK)  # nobody has added the first turn to the rollout

    asyncio.run(go())


@pytest.mark.parametrize(
    ("total", "used", "left"),
    [(None, 90, 100), (200, 90, 100), (190, 90, 100), (189, 90, 99), (91, 90, 1), (90, 90, 0)],
)
def test_no_more_tokens_are_asked_for_than_are_left(total: int | None, used: int, left: int) -> None:
    model = Model(tokens(1, 1))
    turns = [tokens(5, used - 40), tokens(5, 40)]
    caller = make_caller(model, Limits(max_tokens_total=total, max_turns=9), turns)
    if not left:
        with pytest.raises(LimitReached, match="max_tokens_total"):
            ask(caller)
    else:
        ask(caller)
        assert model.samplings[0].max_tokens == left


def test_a_response_is_all_that_follows_the_first_prompt() -> None:
    later = [*ASK, Message("assistant", "2"), Message("user", "x" * 20), Message("tool", "y" * 23)]
    turns = [tokens(10, 5), tokens(30, 6)]
    for allowed, left in ((200, 100), (37, 1), (36, 0)):
        model = Model(tokens(40, 0))
        caller = make_caller(model, Limits(max_response_tokens=allowed, max_turns=9), turns)
        if left:
            # 30 + 6 - 10 tokens so far, and 43 characters for a quarter as many tokens
            assert caller._limit_sampling(later, None).max_tokens == left
        else:
            with pytest.raises(LimitReached, match="max_response_tokens"):
                caller._limit_sampling(later, None)
    assert make_caller(Model(), Limits(max_response_tokens=60))._limit_sampling(ASK, None).max_tokens == 60


@pytest.mark.parametrize(("completion", "fits"), [(26, True), (27, False)])
def test_an_answer_beyond_the_limit_of_a_response_is_left_out(completion: int, fits: bool) -> None:
    limits = Limits(max_response_tokens=56, max_turns=9)
    caller = make_caller(Model(tokens(40, completion)), limits, [tokens(10, 5)])
    if fits:
        ask(caller)
    else:
        with pytest.raises(LimitReached, match="max_response_tokens"):
            ask(caller)


@pytest.mark.parametrize(
    ("total", "text", "count", "fails"),
    [(None, "2", 0, False), (50, "2", 1, False), (50, "2", 0, True), (50, "", 0, False)],
)
def test_a_server_that_does_not_count_tokens_is_refused_where_they_are_limited(
    total: int | None, text: str, count: int, fails: bool
) -> None:
    caller = make_caller(Model(tokens(1, count), text=text), Limits(max_tokens_total=total))
    if fails:
        with pytest.raises(RolloutFailed, match="does not count tokens, so --max-tokens-total cannot be enforced"):
            ask(caller)
    else:
        ask(caller)


def test_values_of_the_agent_go_before_those_of_the_run() -> None:
    model = Model(tokens(1, 1))
    ask(make_caller(model), extra={"temperature": 0.25})
    assert model.samplings[0].temperature == 0.25


BROKEN = RolloutFailed("bad_completion", "model", "odd")


def test_a_call_is_repeated_only_after_the_first_turn_and_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    def delay(error: RolloutFailed, past: KeyHistory) -> float:
        waited.append(past.attempts)
        return 0.0

    monkeypatch.setattr(module, "retry_delay_s", delay)
    budgets = {"bad_completion": 3}
    with pytest.raises(RolloutFailed):
        ask(make_caller(Model(BROKEN, tokens(1, 1)), budgets=budgets))
    assert waited == []
    ask(make_caller(Model(BROKEN, BROKEN, tokens(1, 1)), turns=[tokens(1, 1)], budgets=budgets))
    assert waited == [1, 2]
    with pytest.raises(RolloutFailed):
        ask(make_caller(Model(*[BROKEN] * 3, tokens(1, 1)), turns=[tokens(1, 1)], budgets=budgets))
    rejected = RolloutFailed("model_rejected", "model", "no")
    with pytest.raises(RolloutFailed):
        ask(make_caller(Model(rejected, tokens(1, 1)), turns=[tokens(1, 1)], budgets={"model_rejected": 9}))
    assert waited == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("one_version", "now", "restarts"), [(True, "b", True), (True, "a", False), (False, "b", False)]
)
def test_a_rollout_of_one_version_starts_again_with_another(one_version: bool, now: str, restarts: bool) -> None:
    caller = make_caller(Model(tokens(1, 1, now)), turns=[tokens(1, 1, "a")], one_version=one_version)
    if restarts:
        with pytest.raises(RestartAttempt):
            ask(caller)
    else:
        ask(caller)
    ask(make_caller(Model(tokens(1, 1, now)), one_version=one_version))  # it has no turn yet


def test_a_later_call_continues_the_last_one_that_precedes_it() -> None:
    model = Model(*[tokens(1, 1)] * 4)
    caller = make_caller(model, continues=model)
    first = ask(caller)
    later = [*ASK, first.message, Message("user", "And 2 + 2?")]
    second = ask(caller, later)
    ask(caller, [*later, second.message, Message("user", "And 3 + 3?")])
    ask(caller, [Message("user", "other")])
    assert [call.completion for call in model.continued] == [first, second]


def test_after_an_image_nothing_is_continued() -> None:
    model = Model(*[tokens(1, 1)] * 2)
    caller = make_caller(model, continues=model)
    first = ask(caller)
    image = Message("user", [{"type": "image_url", "image_url": {"url": data_url(make_png())}}])
    ask(caller, [*ASK, first.message, image])
    assert model.continued == []
    wrong = Message("user", [{"type": "image_url", "image_url": {"url": "file:cat.png"}}])
    with pytest.raises(RolloutFailed, match="only tasks may name files") as caught:
        ask(caller, [wrong])
    assert (caught.value.kind, caught.value.where) == ("environment_error", "messages")


def test_the_time_of_calls_is_the_models() -> None:
    caller = make_caller(Model(tokens(1, 1), ContextFull("full")))
    ask(caller)
    before = caller._clock.model_s
    assert 0 < before < 10
    with pytest.raises(ContextFull):
        ask(caller)
    assert caller._clock.model_s > before
    timing = caller._clock.timing()
    assert timing.seconds >= timing.model_s == round(caller._clock.model_s, 6)


@pytest.mark.parametrize(("losses", "kind"), [(15, None), (16, "environment_error")])
def test_an_attempt_starts_again_so_many_times(monkeypatch: pytest.MonkeyPatch, losses: int, kind: str | None) -> None:
    lost = iter([SessionLost("gone"), RestartAttempt()] * 8)
    left = [losses]

    async def converse(*_: object) -> None:
        if left[0]:
            left[0] -= 1
            raise next(lost)

    monkeypatch.setattr(RolloutRunner, "_converse_and_verify", converse)
    runner = RolloutRunner(Model(), {}, None, Sampling(), Limits(), 5)  # type: ignore[arg-type]
    job = RolloutJob(Task("t", "?"), 2, KeyHistory(tries={"model_timeout": 1}))
    rollout, error = asyncio.run(runner.run_attempt(job, 4))
    assert (rollout.sample, rollout.round, rollout.attempt) == (2, 4, 2)
    assert (error.kind if error else None) == (rollout.failure.kind if rollout.failure else None) == kind
    assert error is None or error.message == "its process was lost 16 times"


class Session:
    """A session that keeps what happens to it."""

    tools = ()

    def __init__(self, events: list[str]) -> None:
        self.events, self.seconds = events, 0.0

    async def outcome(self) -> int:
        self.events.append("outcome")
        return 7


class Runtime:
    """An environment that keeps what it is asked, in order."""

    def __init__(self, container: str = "") -> None:
        self.spec = EnvironmentSpec("x", "x:Y", container=container)
        self.events: list[str] = []

    async def open_session(self, task: Task, name: str, rollout: Rollout) -> Session:
        self.events.append(f"open {name}")
        return Session(self.events)

    async def verify(self, task: Task, rollout: Rollout, session: object, *, spent_s: float) -> Score:
        assert 0 <= spent_s < 60
        self.events.append(f"verify {'in the session' if session else 'alone'}")
        return Score(0.5)

    async def close_session(self, session: Session) -> None:
        self.events.append("close")


class Agent:
    """An agent that ends as it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def play(self, rollout: Rollout, ask: ModelCaller, session: Session) -> None:
        session.events.append("play")
        session.seconds += 0.25
        if self.error:
            raise self.error


def attempt(runtime: Runtime, error: Exception | None = None, *, verify: bool = True) -> Rollout:
    runner = RolloutRunner(Model(), {"e": runtime}, Agent(error), Sampling(), Limits(), 5)  # type: ignore[arg-type, dict-item]
    job = RolloutJob(Task("t", "?", env="e"), 3, KeyHistory(tries={"model_timeout": 2}))
    rollout, _ = asyncio.run(runner.run_attempt(job, 4, verify=verify))
    assert (rollout.sample, rollout.round, rollout.attempt) == (3, 4, 3)
    assert rollout.seed == derive_seed(5, "t", 3)
    return rollout


@pytest.mark.parametrize(
    ("container", "events"),
    [
        ("", ["open t#3", "play", "outcome", "close", "verify alone"]),
        ("state", ["open t#3", "play", "outcome", "close", "verify alone"]),
        ("verify", ["open t#3", "play", "outcome", "verify in the session", "close"]),
    ],
)
def test_a_rollout_is_verified_before_its_container_is_gone_where_that_is_needed(
    container: str, events: list[str]
) -> None:
    runtime = Runtime(container)
    rollout = attempt(runtime)
    assert (runtime.events, rollout.outcome, rollout.reward) == (events, 7, 0.5)
    timing = rollout.timing
    assert 0.25 <= timing.environment_s < 60  # what the session measured
    assert 0 <= timing.verify_s <= timing.seconds < 60
    assert timing.model_s == 0.0
    unverified = Runtime(container)
    assert attempt(unverified, verify=False).score is None
    assert unverified.events == ["open t#3", "play", "outcome", "close"]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ImageError("no image"), "image_error", "no image"),
        (ContainerError("it ended"), "container_error", "it ended"),
        (KeyError("x"), "agent_error", "KeyError: 'x'"),
    ],
)
def test_what_an_agent_meets_has_its_kind(error: Exception, kind: str, message: str) -> None:
    runtime = Runtime()
    failure = attempt(runtime, error).failure
    assert failure
    assert (failure.kind, failure.where, failure.message) == (kind, "Agent", message)
    assert runtime.events == ["open t#3", "play", "close"]


@pytest.mark.parametrize(
    ("error", "ended", "turns"),
    [(ContextFull("full"), "context_length", 1), (LimitReached("max_turns"), "max_turns", 0)],
)
def test_a_limit_ends_a_conversation_which_is_scored(error: Exception, ended: str, turns: int) -> None:
    rollout = attempt(Runtime(), error)
    assert (rollout.ended, len(rollout.turns), rollout.reward) == (ended, turns, 0.5)
    assert [turn.finish_reason for turn in rollout.turns] == ["context_length"] * turns
