"""An environment on the loop is started once, stopped once, and has no more concurrent calls than it allows."""

from __future__ import annotations

import asyncio

import pytest

from rollbook.core import Limits, Rollout, Task
from rollbook.environments.environment import Environment, execution_mode
from rollbook.environments.registry import load_instance
from rollbook.environments.runtime import EnvironmentRuntime
from rollbook.errors import RolloutFailed, UsageError

TASK = Task(id="t", prompt="?")


class Recording(Environment):
    """Records its calls, and how many run at once."""

    def __init__(self, fails: str = "", slow_s: float = 0.0) -> None:
        self.life: list[str] = []
        self.fails, self.slow_s = fails, slow_s
        self.now = self.most = 0

    def tasks(self):
        yield TASK

    async def start(self):
        self.life.append("start")
        if self.fails == "start":
            raise ConnectionError("no one\nis there")
        if self.fails == "usage":
            raise UsageError("there is no such thing")
        if self.fails == "hang":
            await asyncio.sleep(60)

    async def stop(self):
        self.life.append("stop")

    async def _busy(self):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.slow_s)
        self.now -= 1

    async def verify(self, task, rollout):
        assert self.life == ["start"]
        await self._busy()
        return 1.0


class Narrow(Recording):
    verify_at_once = 2
    states_at_once = 2

    async def open(self, task):
        self.now += 1
        self.most = max(self.most, self.now)
        if self.fails == "open":
            raise ValueError("no")
        return []

    async def close(self, state):
        self.now -= 1


def make_runtime(environment: Environment, verify_s: float = 5.0) -> EnvironmentRuntime:
    return EnvironmentRuntime(
        load_instance(environment).spec, Limits(verify_s=verify_s), environment=lambda: environment
    )


def rollout() -> Rollout:
    return Rollout(task=TASK, sample=0, seed=0)


def test_an_environment_is_started_before_it_verifies_and_stopped_once():
    async def play() -> list[str]:
        env = Recording()
        runtime = make_runtime(env)
        await runtime.open()
        assert (await runtime.verify(TASK, rollout())).reward == 1.0
        await runtime.close()
        await runtime.close()
        return env.life

    assert asyncio.run(play()) == ["start", "stop"]


@pytest.mark.parametrize(
    ("fails", "words"),
    [("start", "cannot start: ConnectionError: no one is there"), ("usage", "cannot start: there is no such thing")],
)
def test_one_that_does_not_start_refuses_the_run_in_one_line_and_is_stopped(fails, words):
    async def play() -> tuple[list[str], str]:
        env = Recording(fails=fails)
        runtime = make_runtime(env)
        with pytest.raises(UsageError) as refused:
            await runtime.open()
        await runtime.close()
        return env.life, str(refused.value)

    life, message = asyncio.run(play())
    assert life == ["start", "stop"]
    assert words in message
    assert "\n" not in message


def test_one_that_is_cancelled_while_it_starts_is_stopped():
    async def play() -> list[str]:
        env = Recording(fails="hang")
        runtime = make_runtime(env)
        opening = asyncio.create_task(runtime.open())
        await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await runtime.close()
        return env.life

    assert asyncio.run(play()) == ["start", "stop"]


def test_no_more_verify_at_once_than_it_bears_and_who_waits_is_not_on_the_clock():
    async def play() -> tuple[int, list[float]]:
        env = Narrow(slow_s=0.05)
        runtime = make_runtime(env, verify_s=0.2)  # ten of them take 0.25 s, one after another two by two
        await runtime.open()
        scores = await asyncio.gather(*(runtime.verify(TASK, rollout()) for _ in range(10)))
        await runtime.close()
        return env.most, [score.reward for score in scores]

    most, rewards = asyncio.run(play())
    assert most == 2
    assert rewards == [1.0] * 10


def test_a_verify_that_is_late_gives_its_place_back():
    async def play() -> int:
        env = Narrow(slow_s=30)
        runtime = make_runtime(env, verify_s=0.02)
        await runtime.open()
        for _ in range(3):
            with pytest.raises(RolloutFailed, match="verifier_timeout"):
                await runtime.verify(TASK, rollout())
        await runtime.close()
        return env.most

    assert asyncio.run(play()) > 0


def test_no_more_states_at_once_than_it_bears():
    async def one(runtime: EnvironmentRuntime, name: str) -> None:
        session = await runtime.open_session(TASK, name)
        await asyncio.sleep(0.01)
        await runtime.close_session(session)

    async def play() -> tuple[int, int]:
        env = Narrow()
        runtime = make_runtime(env)
        await runtime.open()
        await asyncio.gather(*(one(runtime, str(number)) for number in range(8)))
        await runtime.close()
        return env.most, env.now

    assert asyncio.run(play()) == (2, 0)


def test_a_state_that_does_not_open_gives_its_place_back():
    async def play() -> None:
        runtime = make_runtime(Narrow(fails="open"))
        await runtime.open()
        for _ in range(5):
            with pytest.raises(RolloutFailed, match="environment_error"):
                async with asyncio.timeout(2):
                    await runtime.open_session(TASK, "t")
        await runtime.close()

    asyncio.run(play())


class SyncStart(Recording):
    def start(self):
        pass


class NothingAsync(Environment):
    def tasks(self):
        yield TASK

    def verify(self, task, rollout):
        return True

    async def stop(self):
        pass


@pytest.mark.parametrize(
    ("cls", "words"), [(SyncStart, "start must be async"), (NothingAsync, "stop would never be called")]
)
def test_a_life_that_nobody_would_live_is_refused(cls, words):
    with pytest.raises(UsageError, match=words):
        execution_mode(cls)


@pytest.mark.parametrize("moment", range(8))
def test_a_state_is_closed_at_whatever_moment_of_its_opening_one_is_cancelled(moment):
    async def play() -> int:
        env = Narrow()
        runtime = make_runtime(env)
        await runtime.open()
        opening = asyncio.ensure_future(runtime.open_session(TASK, "t"))
        for _ in range(moment):
            await asyncio.sleep(0)
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
        if not opening.cancelled():
            await runtime.close_session(opening.result())
        await runtime.close()
        return env.now

    assert asyncio.run(play()) == 0
