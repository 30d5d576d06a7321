"""Real agents from the package index: `make test-gateway`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import rollbook
from rollbook.book import Book, rollouts
from rollbook.core import Rollout
from rollbook.tokens import merge
from support.endpoint import Endpoint
from support.sums import write_sums

TASK = """
import json, os
task = json.load(open(os.environ["ROLLBOOK_TASK"]))

def leave(answer):
    open(os.environ["ROLLBOOK_ANSWER"], "w").write(str(answer))
"""

SMOLAGENTS = (
    TASK
    + """
from smolagents import CodeAgent, OpenAIServerModel

model = OpenAIServerModel(model_id="any", api_base=os.environ["OPENAI_BASE_URL"])
agent = CodeAgent(tools=[], model=model, max_steps=4)
leave(agent.run(task["prompt"]))
"""
)

OPENAI_AGENTS = (
    TASK
    + """
import asyncio
from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)

@function_tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

async def main():
    helper = Agent(name="helper", instructions="You help.", model="any")
    agent = Agent(name="clerk", instructions="Use the tool.", tools=[add], model="any")
    await Runner.run(helper, "Are you there?")
    played = Runner.run_streamed(agent, task["prompt"])
    async for _ in played.stream_events():
        pass
    leave(played.final_output)

asyncio.run(main())
"""
)


def code(messages: list, seed: int, right: float) -> str:
    """What a model of code says: first it tries, then it is sure."""
    prompt = str(messages[1]["content"])
    a = int(prompt.partition("What is ")[2].partition(" +")[0])
    if sum(message["role"] == "assistant" for message in messages) == 0:
        return f"Thought: I add.\n<code>\ntotal = {a} + {a}\nprint(total)\n</code>"
    return "Thought: that is it.\n<code>\nfinal_answer(total)\n</code>"


def played(folder: Path, program: str) -> list[Rollout]:
    """Three rollouts of sums by an agent, with their tokens."""
    path = folder / "agent.py"
    path.write_text(program)

    async def main() -> Path:
        async with Endpoint(vllm=True, right=1.0) as endpoint:
            result = await rollbook.run_async(
                f"{write_sums(folder)}?tasks=3",
                endpoint.url,
                agent=f"program:{sys.executable} {path}",
                out=folder / "run",
                concurrency=2,
                probe=False,
            )
            return result.path

    return sorted(rollouts(Book(asyncio.run(main())), tokens=True), key=lambda r: r.task.id)


def assert_trained_once(rollout: Rollout) -> None:
    sequences = merge(rollout.turns)
    assert sum(sequence.trained for sequence in sequences) == sum(turn.completion_tokens for turn in rollout.turns)


def test_a_code_agent_of_smolagents_is_recorded_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("smolagents")
    monkeypatch.setattr("support.endpoint.answer_to", code)
    for number, rollout in enumerate(played(tmp_path, SMOLAGENTS)):
        assert (rollout.reward, rollout.text) == (1.0, str(2 * number))
        assert len(rollout.turns) == 2
        assert_trained_once(rollout)


def test_agents_of_the_openai_agents_package_are_recorded_and_scored(tmp_path: Path) -> None:
    pytest.importorskip("agents.run")  # not our folder of tests
    for number, rollout in enumerate(played(tmp_path, OPENAI_AGENTS)):
        assert rollout.text == f"The answer is {2 * number}."
        helper, *clerk = merge(rollout.turns)
        assert (helper.trained, len(clerk)) == (3, 1), "a sub-agent is a branch; a tool loop is one sequence"
        assert_trained_once(rollout)
