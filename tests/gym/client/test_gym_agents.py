"""Running a Gym agent: the request, the reply, and that one failed /run is one failed rollout."""

import asyncio
import json

import pytest

from rollbook import Environment, Shortfall, run, run_async, score
from rollbook.book import Book, rollouts
from rollbook.core import Limits, Rollout, Sampling
from rollbook.engine import Request, load_run_environments, plan_request
from rollbook.environments import EnvironmentRuntime, load_instance
from rollbook.environments.environment import execution_mode
from rollbook.errors import RolloutFailed, UsageError
from rollbook.gym.client.agents import RemoteAgent
from support.gym_servers import Agent, row, write_rows

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": [-0.5, -0.25]}


def drive(agent, folder, *rows, **settings):
    data = write_rows(folder / "rows.jsonl", *(rows or (row("a"), row("b"), row("c"))))

    async def main():
        async with agent:
            await run_async(f"gym+agent://{agent.host}", data=data, out=folder / "run", **settings)

    asyncio.run(main())
    return {rollout.key: rollout for rollout in rollouts(Book(folder / "run"), tokens=True)}


def test_a_rollout_is_what_the_agent_says(tmp_path):
    agent = Agent()
    result = drive(agent, tmp_path, row("a", id="x", agent_ref={"name": "mine"}, odd=[1]))["x", 0]
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert (result.messages[1].reasoning, result.text) == ("hm", "42")
    assert (result.reward, result.score.info) == (1.0, {"steps": 1})
    assert [t.finish_reason for t in result.turns] == ["tool_calls", "stop"]
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (30, 7)


def test_what_is_sent_is_the_row_with_its_indices_and_the_sampling_of_the_run(tmp_path):
    agent = Agent()
    requested = row("a", id="x", agent_ref={"name": "mine"}, odd=[1])
    requested["responses_create_params"] |= {"temperature": 0.1, "metadata": {"extra_body": '{"min_p": 0.5}'}}
    result = drive(agent, tmp_path, row("first"), requested, samples=2, sampling=Sampling(0.7, 0.9, 33, {"top_k": 5}))
    body = next(b for b in agent.bodies if b["_ng_task_index"] == 1 and b["_ng_rollout_index"] == 1)
    params = body["responses_create_params"]
    assert (params["temperature"], params["top_p"], params["max_output_tokens"]) == (0.7, 0.9, 33)
    extra = json.loads(params["metadata"]["extra_body"])
    assert extra == {"min_p": 0.5, "top_k": 5, "seed": result["x", 1].seed}
    assert (body["agent_ref"], body["odd"]) == ({"name": "mine"}, [1])
    assert "_ng_attempt_index" not in body


def test_an_agent_that_is_away_for_a_while_costs_no_rollout(tmp_path):
    async def main():
        async with Agent() as agent:
            environment = RemoteAgent(f"gym+agent://{agent.host}", write_rows(tmp_path / "rows.jsonl", row("a")))
            (task,) = environment.tasks()
            await environment.start()
            await agent.go_away()
            rollout = Rollout(task=task, sample=0, seed=0, messages=task.messages)
            with pytest.raises(RolloutFailed, match="connection"):
                await environment.play(task, rollout, AskNobody(), {})
            with pytest.raises(RolloutFailed, match=r"connection refused, for 0\.1 s or longer"):
                await environment.wait_until_ready(task, 0.1)
            waiting = [asyncio.create_task(environment.wait_until_ready(task, 60.0)) for _ in range(8)]
            await asyncio.sleep(0.5)
            assert not any(one.done() for one in waiting)
            await agent.listen()
            await asyncio.gather(*waiting)
            verdict = {}
            await environment.play(task, rollout, AskNobody(), verdict)
            await environment.stop()
            assert verdict["score"]["reward"] == 1.0

    asyncio.run(main())


def test_a_rollout_that_an_agent_scored_before_it_went_away_is_scored(tmp_path):
    async def main():
        async with Agent() as agent:
            environment = RemoteAgent(f"gym+agent://{agent.host}", write_rows(tmp_path / "rows.jsonl", row("a")))
            (task,) = environment.tasks()
            spec = load_instance(environment).spec
            runtime = EnvironmentRuntime(spec, Limits(), environment=lambda: environment, outage_s=0.1)
            await runtime.open()
            done, late = (Rollout(task=task, sample=n, seed=0, messages=task.messages) for n in range(2))
            done.outcome = {}
            await environment.play(task, done, AskNobody(), done.outcome)
            await agent.go_away()
            with pytest.raises(RolloutFailed, match="connection"):
                await environment.play(task, late, AskNobody(), {})
            assert (await runtime.verify(task, done)).reward == 1.0
            await runtime.close()

    asyncio.run(main())


class AskNobody:
    sampling = Sampling()


def test_tokens_are_taken_exactly(tmp_path):
    agent = Agent()
    agent.tokens = TOKENS
    turn = drive(agent, tmp_path, row("a", id="x"))["x", 0].turns[-1]
    assert (turn.prompt_ids, turn.ids, turn.logprobs) == ([1, 2], [3, 4], [-0.5, -0.25])


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("500", "agent_error"),
        ("timeout_exceeded", "agent_error"),
        ("sandbox_error", "sandbox_error"),
        ("no_reward", "invalid_reward"),
        ("no_response", "agent_error"),
        ("half_tokens", "token_mismatch"),
    ],
)
def test_one_failed_run_is_one_failed_rollout(tmp_path, mode, kind):
    agent = Agent(mode, only=(1,))
    with pytest.raises(Shortfall) as caught:
        drive(agent, tmp_path, attempts={"agent_error": 1, "sandbox_error": 1})
    assert (caught.value.scored, caught.value.failed) == (2, {kind: 1})
    assert [key for *key, _ in caught.value.missing] == [["rows-2", 0]]


def test_a_failed_attempt_is_made_again_and_says_so(tmp_path):
    agent = Agent("500", only=(0,))

    async def main():
        async with agent:
            data = write_rows(tmp_path / "rows.jsonl", row("a", id="x"))
            await run_async(f"gym+agent://{agent.host}", data=data, out=tmp_path / "run", attempts={"agent_error": 2})

    with pytest.raises(Shortfall):
        asyncio.run(main())
    assert [body.get("_ng_attempt_index") for body in agent.bodies] == [None, 1]


def test_an_agent_that_hangs_is_a_rollout_timeout(tmp_path):
    with pytest.raises(Shortfall) as caught:
        drive(Agent("hang"), tmp_path, row("a"), limits=Limits(rollout_s=0.2))
    assert caught.value.failed == {"rollout_timeout": 1}


def test_no_model_is_asked_so_none_may_be_given(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a"))
    request = Request(env="gym+agent://h:1", data=data, out=str(tmp_path / "run"))
    assert load_run_environments(request)[0].loaded.spec.plays
    path = plan_request(request)
    assert Book(path).manifest.model.kind == "remote"
    with pytest.raises(UsageError, match=r"-m http://m/v1: gym\+agent://h:1 runs its rollouts with its own model"):
        run("gym+agent://h:1", "http://m/v1", data=data, out=tmp_path / "other")


def test_a_row_that_names_no_agent_in_its_agent_ref_is_refused(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a"), row("b", agent_ref={"type": "responses_api_agents"}))
    with pytest.raises(UsageError, match=r"rows\.jsonl:2: agent_ref names no agent"):
        list(RemoteAgent("gym+agent://h:1", data).tasks())


@pytest.mark.parametrize("url", ["gym+agent://", "gym+agent://h:0", "gym+agent://u:p@h:1", "gym+agent://h:1?x=secret"])
def test_an_address_is_checked_and_nothing_of_a_secret_is_quoted(url):
    with pytest.raises(UsageError, match=r"write gym\+agent://host:port") as caught:
        RemoteAgent(url, "rows.jsonl")
    assert "secret" not in str(caught.value)
    assert "u:p" not in str(caught.value)


def test_who_plays_elsewhere_has_no_tools_or_replies_here():
    class Sync(Environment):
        def tasks(self): ...
        async def verify(self, task, rollout): ...
        def play(self, task, rollout, ask, state): ...

    class Replies(Environment):
        def tasks(self): ...
        async def verify(self, task, rollout): ...
        async def play(self, task, rollout, ask, state): ...
        async def reply(self, task, rollout, state): ...

    with pytest.raises(UsageError, match=r"Sync\.play must be async"):
        execution_mode(Sync)
    with pytest.raises(UsageError, match="its tools and reply would never be called"):
        execution_mode(Replies)


def test_an_agent_may_make_the_prompt_itself(tmp_path):
    requested = {"responses_create_params": {"input": []}, "id": "x"}
    result = drive(Agent(), tmp_path, requested)["x", 0]
    assert [m.role for m in result.messages] == ["assistant", "tool", "assistant"]


def test_no_given_answer_can_be_scored_by_somebody_who_plays(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a", id="x"))
    with pytest.raises(UsageError, match="runs its rollouts itself, so it cannot score a given answer"):
        score("gym+agent://h:1", "x", "42", data=data)
