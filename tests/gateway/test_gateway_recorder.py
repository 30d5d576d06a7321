"""The recorder: what it asks the model for an agent, and the outcome of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from rollbook.core import JSON, Message, Rollout, Sampling, Task, Turn
from rollbook.errors import ContextFull, EndpointDown, LimitReached, RolloutFailed
from rollbook.gateway.protocol import ModelRequest, RolloutEnded, TooManyCalls
from rollbook.gateway.recorder import MAX_CALLS_AT_ONCE, MAX_FAILED_CALLS, Recorder
from rollbook.models import Completion

AWAY = RolloutFailed("model_unavailable", "model", "away")


class Script:
    """A model that says, or raises, one thing after the other."""

    sampling = Sampling()

    def __init__(self, *answers: str | Exception) -> None:
        self._told, self.extras = list(answers), list[JSON]()
        self.waiting: asyncio.Event | None = None

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        self.extras.append(extra)
        if self.waiting:
            await self.waiting.wait()
        answers = self._told.pop(0)
        if isinstance(answers, Exception):
            raise answers
        return Completion(Message("assistant", answers), Turn())


def asking(text: str) -> ModelRequest:
    return ModelRequest([Message("user", text)])


def fresh() -> Rollout:
    return Rollout(task=Task("t", "one"), sample=0, seed=5, messages=[], turns=[])


def recorded(script: Script, work: Callable[[Recorder], Awaitable[None]]) -> tuple[Rollout, Recorder]:
    rollout = fresh()

    async def main() -> Recorder:
        recorder = Recorder(rollout, script)
        await work(recorder)
        return recorder

    return rollout, asyncio.run(main())


def test_every_answer_is_in_the_rollout_as_it_comes() -> None:
    async def work(recorder: Recorder) -> None:
        await recorder.complete(asking("one"))
        await recorder.complete(asking("two"))

    rollout, recorder = recorded(Script("a", "b"), work)
    assert [m.text for m in rollout.messages] == ["one", "a", "two", "b"]
    assert recorder.calls == 2
    recorder.raise_failure()


def test_a_call_that_failed_and_was_never_answered_fails_the_rollout() -> None:
    async def work(recorder: Recorder) -> None:
        with pytest.raises(RolloutFailed):
            await recorder.complete(asking("one"))
        await recorder.complete(asking("two"))

    _, recorder = recorded(Script(AWAY, "b"), work)
    with pytest.raises(RolloutFailed, match="away"):
        recorder.raise_failure()


def test_a_call_that_was_answered_when_it_was_made_again_is_no_failure() -> None:
    async def work(recorder: Recorder) -> None:
        with pytest.raises(RolloutFailed):
            await recorder.complete(asking("one"))
        await recorder.complete(asking("one"))

    script = Script(AWAY, "a")
    rollout, recorder = recorded(script, work)
    recorder.raise_failure()
    assert script.extras == [{}, {}], "nobody heard the first answer, so the seed is the same"
    assert len(rollout.turns) == 1


def test_whoever_asks_the_same_again_gets_another_seed_and_the_same_ones_next_time() -> None:
    async def work(recorder: Recorder) -> None:
        for _ in range(3):
            await recorder.complete(asking("one"))
        await recorder.complete(ModelRequest([Message("user", "one")], extra={"seed": 7}))

    first, again = Script(*"abcd"), Script(*"abcd")
    recorded(first, work)
    recorded(again, work)
    assert first.extras == again.extras
    assert first.extras[0] == {}
    assert first.extras[3] == {"seed": 7}
    assert len({extra["seed"] for extra in first.extras[1:]}) == 3


@pytest.mark.parametrize("end", [ContextFull("too long"), LimitReached("max_turns")])
def test_a_limit_is_what_the_rollout_came_to(end: Exception) -> None:
    async def work(recorder: Recorder) -> None:
        await recorder.complete(asking("one"))
        with pytest.raises(type(end)):
            await recorder.complete(asking("two"))

    _, recorder = recorded(Script("a", end), work)
    with pytest.raises(type(end)):
        recorder.raise_failure()


def test_an_agent_that_asks_less_after_a_full_context_goes_on() -> None:
    async def work(recorder: Recorder) -> None:
        with pytest.raises(ContextFull):
            await recorder.complete(asking("one and more"))
        await recorder.complete(asking("one"))

    _, recorder = recorded(Script(ContextFull("too long"), "a"), work)
    recorder.raise_failure()


def test_what_concerns_the_whole_run_breaks_the_rollout_at_once() -> None:
    async def work(recorder: Recorder) -> None:
        with pytest.raises(EndpointDown):
            await recorder.complete(asking("one"))
        assert recorder.broken.is_set()
        with pytest.raises(RolloutEnded):
            await recorder.complete(asking("two"))

    _, recorder = recorded(Script(EndpointDown("gone"), "b"), work)
    with pytest.raises(EndpointDown):
        recorder.raise_failure()


def test_an_agent_that_asks_without_end_of_a_model_that_fails_is_given_up() -> None:
    async def work(recorder: Recorder) -> None:
        for number in range(MAX_FAILED_CALLS):
            with pytest.raises(RolloutFailed):
                await recorder.complete(asking(str(number)))
        assert recorder.broken.is_set()

    recorded(Script(*[AWAY] * MAX_FAILED_CALLS), work)


def test_calls_at_once_are_bounded_and_none_is_recorded_after_the_end() -> None:
    script = Script(*"a" * 100)

    async def work(recorder: Recorder) -> None:
        script.waiting = asyncio.Event()
        calls = [asyncio.create_task(recorder.complete(asking(str(i)))) for i in range(MAX_CALLS_AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyCalls):
            await recorder.complete(asking("one more"))
        recorder.close()
        script.waiting.set()
        assert {type(end) for end in await asyncio.gather(*calls, return_exceptions=True)} == {RolloutEnded}

    rollout, _ = recorded(script, work)
    assert rollout.turns == []
