"""An environment that replies to the model, called as Gym's gymnasium agent does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rollbook import Environment, Score, Task, tool
from rollbook.core import Limits, Settings
from rollbook.environments import load_instance
from rollbook.gym.harness import open_runtime
from rollbook.gym.rows import make_row
from rollbook.gym.server.resources import ResourcesServer
from support.gym_client import SimpleAgent, call, listening, replies, response, text


class Guess(Environment):
    """Says higher or lower until the number is named; a hint can be asked for."""

    def __init__(self) -> None:
        self.open_states = 0

    def tasks(self):
        yield Task(id="guess", prompt="Guess my number.", answer=7)

    async def open(self, task):
        self.open_states += 1
        return {"hints": 0, "answer": task.answer}

    @tool
    async def hint(self, state: dict) -> str:
        """Ask for a hint."""
        state["hints"] += 1
        return f"it is {'odd' if state['answer'] % 2 else 'even'}"

    async def reply(self, task, rollout, state):
        steps_taken = rollout.text
        if steps_taken == "break":
            raise ConnectionError("gone")
        if steps_taken == str(task.answer):
            return None
        return "higher" if int(steps_taken) < task.answer else "lower"

    async def outcome(self, state):
        return state["hints"]

    async def close(self, state):
        self.open_states -= 1

    async def verify(self, task, rollout):
        return Score(float(rollout.text == str(task.answer)), parts={"hints": rollout.outcome}, answer=rollout.text)


ROW = make_row(Task("guess", "Guess my number.", answer=7))


def steps(
    *steps_taken: list[dict[str, Any]], env: Guess, limits: Limits | None = None, end: str = ""
) -> list[tuple[int, Any]]:
    async def go() -> list[tuple[int, Any]]:
        limited = limits or Limits()
        async with (
            open_runtime(load_instance(env), limited, Settings()) as runtime,
            listening(ResourcesServer("guess", runtime, limited).make_app()) as url,
        ):
            agent = SimpleAgent(url, replies())
            responses = [await agent.post("/reset", ROW)]
            for output in steps_taken:
                responses.append(await agent.post("/step", {**ROW, "response": response(output)}))
            if end:
                responses.append(await agent.post(end, {}))
        return [(status, json.loads(body)) for status, body in responses]

    return asyncio.run(go())


def test_an_episode_from_its_reset_to_its_reward() -> None:
    env = Guess()
    steps_taken = steps([call("hint")], [text("5")], [text("9")], [text("7")], env=env)
    assert [status for status, _ in steps_taken] == [200] * 5
    reset, hint, higher, lower, last = (answer for _, answer in steps_taken)
    assert reset == {"observation": None, "info": {"supports_explicit_close": True}}
    quiet = {"observation": None, "reward": 0.0, "terminated": False, "truncated": False}
    assert hint == {**quiet, "info": {"tool_outputs": [{"call_id": "call_1", "output": "it is odd"}]}}
    assert (higher["observation"], lower["observation"]) == ("higher", "lower")
    assert (last["reward"], last["terminated"], last["truncated"]) == (1.0, True, False)
    assert (last["info"]["extracted_answer"], last["info"]["rollbook"]["outcome"]) == ("7", 1)
    assert env.open_states == 0


def test_the_limit_of_turns_ends_it_with_a_verified_reward() -> None:
    env = Guess()
    *_, (status, last) = steps([text("5")], [text("7")], env=env, limits=Limits(max_turns=2))
    assert (status, last["reward"], last["terminated"]) == (200, 1.0, True)
    *_, (status, last) = steps([text("5")], [text("6")], env=env, limits=Limits(max_turns=2))
    assert (status, last["reward"], last["terminated"], last["truncated"]) == (200, 0.0, False, True)


def test_an_environment_that_breaks_is_no_reward_but_a_500() -> None:
    env = Guess()
    *_, (status, body), (late, over) = steps([text("break")], [text("7")], env=env)
    assert (status, body) == (500, "environment_error in reply: ConnectionError: gone")
    assert (late, over) == (400, "this episode is over: reset for a new one")
    assert env.open_states == 0


@pytest.mark.parametrize("end", ["", "/close"])
def test_an_episode_that_is_left_is_closed(end: str) -> None:
    env = Guess()
    steps_taken = steps([text("5")], env=env, end=end)
    assert steps_taken[-1][0] == 200
    assert env.open_states == 0


class Thinking(Guess):
    """Takes for ever to say anything."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def reply(self, task, rollout, state):
        self.begun.set()
        await asyncio.sleep(60)


def test_a_step_whose_episode_is_closed_meanwhile_is_told_so() -> None:
    async def main() -> tuple[int, str, int]:
        env = Thinking()
        async with (
            open_runtime(load_instance(env), Limits(), Settings()) as runtime,
            listening(ResourcesServer("t", runtime).make_app()) as url,
        ):
            agent = SimpleAgent(url, replies())
            await agent.post("/reset", ROW)
            step = asyncio.ensure_future(agent.post("/step", {**ROW, "response": response([text("5")])}))
            await env.begun.wait()
            await agent.post("/close", {})
            return *await step, env.open_states

    status, steps_taken, left = asyncio.run(main())
    assert (status, left) == (400, 0)
    assert "closed meanwhile" in steps_taken
