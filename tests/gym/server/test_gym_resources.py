"""An environment served as Gym's resources server, called by a client that behaves like Gym's simple agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollbook import Environment, Score, Task, tool
from rollbook.core import Limits, Settings
from rollbook.environments import load_instance, resolve
from rollbook.errors import RolloutFailed, UsageError
from rollbook.gym.harness import open_runtime
from rollbook.gym.rows import make_row
from rollbook.gym.server.resources import ResourcesServer
from rollbook.processes import expiring_sessions
from support.gym_client import SimpleAgent, call, listening, replies, response, text

Asked = Callable[[str, ResourcesServer], Awaitable[Any]]


class Sums(Environment):
    """Asks for a sum; the verifier of `broken` tasks raises, the judge of `judged` ones is away."""

    def tasks(self):
        yield Task(id="sum-1", prompt="1 + 1?", answer="2", level=3)

    async def verify(self, task, rollout):
        if task.fields.get("broken"):
            raise RuntimeError("cannot say")
        if task.fields.get("judged"):
            raise RolloutFailed("judge_error", "judge", "the judge: away")
        good = float(task.answer in rollout.text)
        cut = float(rollout.truncated)
        return Score(good - cut, parts={"good": good, "cut": -cut}, answer=rollout.text, info={"level": task.level})


class Counter(Environment):
    """Counts what it is told to; the count is the outcome."""

    def __init__(self) -> None:
        self.open_states = 0

    def tasks(self):
        yield Task(id="count-3", prompt="Count to 3.", answer=3)

    async def open(self, task):
        self.open_states += 1
        return {"count": task.fields.get("start", 0)}

    @tool
    async def add(self, number: int, state: dict) -> dict:
        """Add a number.

        Args:
            number: How much to add.
        """
        state["count"] += number
        if number == 99:
            raise ValueError("too much")
        if number == 100:
            raise ConnectionError("the world is gone")
        return {"count": state["count"]}

    async def outcome(self, state):
        return state["count"]

    async def close(self, state):
        self.open_states -= 1

    async def verify(self, task, rollout):
        return rollout.outcome == task.answer


class Verify(Counter):
    @tool
    async def verify_all(self, state: dict) -> str:
        """Not a reserved name."""
        return "ok"

    @tool
    async def step(self, state: dict) -> str:
        """A reserved name."""
        return "ok"


@asynccontextmanager
async def serving(env: Environment | str, **options: Any) -> AsyncIterator[tuple[str, ResourcesServer]]:
    loaded = resolve(env) if isinstance(env, str) else load_instance(env)
    async with open_runtime(loaded, Limits(tool_s=5), Settings(hosts=1)) as runtime:
        server = ResourcesServer("env", runtime, **options)
        async with listening(server.make_app()) as url:
            yield url, server


def serve_and_call(env: Environment | str, go: Asked, **options: Any) -> Any:
    async def work() -> Any:
        async with serving(env, **options) as (url, server):
            return await go(url, server)

    return asyncio.run(work())


def played(env: Environment, row: dict[str, Any], *turns: list[dict[str, Any]], **options: Any) -> tuple[int, Any]:
    async def go(url: str, _: ResourcesServer) -> Any:
        return await SimpleAgent(url, replies(*turns)).run(row)

    return serve_and_call(env, go, **options)


def row(**fields: Any) -> dict[str, Any]:
    return make_row(Task("sum-1", "1 + 1?", answer="2", level=3, **fields))


COUNT = make_row(Task("count-3", "Count to 3.", answer=3))


def test_a_response_is_verified_and_everything_comes_back() -> None:
    sent = {**row(), "_ng_task_index": 4, "unknown": {"kept": [1]}}
    status, reply = played(Sums(), sent, [text("It is 2.")])
    assert status == 200
    assert {name: reply[name] for name in sent} == sent
    assert reply["response"]["output"] == [text("It is 2.")]
    assert (reply["reward"], reply["extracted_answer"], reply["good"], reply["cut"]) == (1.0, "It is 2.", 1.0, 0.0)
    assert reply["reward_components"] == {"good": 1.0, "cut": 0.0}
    score = {"reward": 1.0, "parts": {"good": 1.0, "cut": 0.0}, "answer": "It is 2.", "info": {"level": 3}}
    assert reply["rollbook"] == {"score": score, "outcome": None}


def test_an_answer_that_was_cut_is_known_to_be() -> None:
    async def go(url: str, _: ResourcesServer) -> Any:
        cut = {**response([text("2")]), "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return await SimpleAgent(url, replies()).post("/verify", {**row(), "response": cut})

    _, reply = serve_and_call(Sums(), go)
    assert json.loads(reply)["reward"] == 0.0


def test_tools_act_on_the_state_of_the_session_and_the_outcome_is_verified() -> None:
    turns = [call("add", 1, number=1), call("add", 2, number=1)], [call("add", 3, number=1)], [text("done")]
    env = Counter()
    status, reply = played(env, COUNT, *turns)
    outputs = [item["output"] for item in reply["response"]["output"] if item["type"] == "function_call_output"]
    assert outputs == ['{"count":1}', '{"count":2}', '{"count":3}']
    assert (status, reply["reward"], reply["rollbook"]["outcome"], env.open_states) == (200, 1.0, 3, 0)


def test_the_state_survives_a_tool_that_raises_and_mistakes_of_the_model() -> None:
    turns = (
        [call("add", 1, number=1), call("add", 2, number="one"), call("sub", 3, number=1)],
        [call("add", 4, number=99)],
        [call("add", 5, number=-97)],
        [text("done")],
    )
    status, reply = played(Counter(), COUNT, *turns)
    outputs = [item["output"] for item in reply["response"]["output"] if item["type"] == "function_call_output"]
    assert outputs[1].startswith("Error: the arguments of add do not fit")
    assert outputs[2] == "Error: there is no tool called 'sub'; there are add"
    assert outputs[3] == "Error: ValueError: too much"
    assert (status, reply["reward"], reply["rollbook"]["outcome"]) == (200, 1.0, 3)


def test_a_broken_world_is_no_score_but_a_500_that_says_why() -> None:
    env = Counter()
    status, reply = played(env, COUNT, [call("add", 1, number=100)], [text("done")])
    assert status == 500
    assert reply == "environment_error in tool add: ConnectionError: the world is gone"
    assert env.open_states == 0


def test_a_verifier_that_breaks_is_no_score_but_a_500_that_says_why() -> None:
    log: list[str] = []
    status, reply = played(Sums(), row(broken=True), [text("2")], say=log.append)
    assert (status, reply) == (500, "verifier_error in verify: RuntimeError: cannot say")
    assert log == ["/verify: verifier_error in verify: RuntimeError: cannot say"]


def test_a_judge_that_is_away_is_told_the_way_gym_tells_it() -> None:
    status, reply = played(Sums(), row(judged=True), [text("2")])
    assert (status, reply["_ng_failure_class"], reply["_ng_failure_judge_error"]) == (
        200,
        "judge_failed",
        "the judge: away",
    )
    assert reply["response"]["output"] == [text("2")]


def test_the_task_is_made_from_the_row_alone() -> None:
    other = {"id": "elsewhere", "responses_create_params": {"input": "2 + 3?"}, "answer": "5", "level": 1}
    status, reply = played(Sums(), other, [text("5")])
    assert (status, reply["reward"], reply["rollbook"]["score"]["info"]) == (200, 1.0, {"level": 1})


def test_every_answer_carries_the_cookie_and_only_ours_is_read() -> None:
    async def go(url: str, _: ResourcesServer) -> list[set[str]]:
        agent = SimpleAgent(url, replies())
        seen = []
        await agent.post("/seed_session", COUNT)
        first = dict(agent.cookies)
        for path, body in (("/add", {"number": 1}), ("/nothing", {}), ("/verify", {}), ("/add", {"number": 100})):
            agent.cookies["other___server"] = "x"
            await agent.post(path, body)
            seen.append(set(agent.cookies.items()))
        return [*seen, set(first.items())]

    *seen, first = serve_and_call(Counter(), go)
    assert all(cookies == first for cookies in seen)


def test_a_cookie_that_was_not_signed_here_opens_nothing() -> None:
    async def go(url: str, _: ResourcesServer) -> tuple[int, str]:
        agent = SimpleAgent(url, replies())
        await agent.post("/seed_session", COUNT)
        ((name, value),) = agent.cookies.items()
        agent.cookies = {name: value[:-4] + "AAAA"}
        return await agent.post("/add", {"number": 1})

    status, reply = serve_and_call(Counter(), go)
    assert status == 400
    assert json.loads(reply).startswith("no session: POST /seed_session first")


def test_a_request_that_is_sent_again_is_answered_again() -> None:
    async def go(url: str, _: ResourcesServer) -> list[tuple[int, str]]:
        agent = SimpleAgent(url, replies())
        await agent.post("/seed_session", COUNT)
        await agent.post("/add", {"number": 3})
        asking = (agent.post("/verify", {**COUNT, "response": response([text("x")])}) for _ in range(3))
        reply = [await next(asking), *await asyncio.gather(*asking)]
        return [*reply, await agent.post("/add", {"number": 3})]

    first, second, third, late = serve_and_call(Counter(), go)
    assert first == second == third
    assert json.loads(first[1])["reward"] == 1.0
    assert (late[0], json.loads(late[1])) == (400, "this session has been verified: seed a new one")


def test_many_sessions_leave_nothing_behind() -> None:
    env = Counter()

    async def go(url: str, server: ResourcesServer) -> tuple[int, int]:
        agents = [SimpleAgent(url, replies([call("add", number=3)], [text("x")])) for _ in range(60)]
        reply = await asyncio.gather(*(agent.run(COUNT) for agent in agents))
        assert [answer["reward"] for _, answer in reply] == [1.0] * 60
        return len(server.sessions), server.sessions.remembered

    assert serve_and_call(env, go, max_sessions=8) == (0, 8)
    assert env.open_states == 0


def test_a_session_that_nobody_uses_ends_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring_sessions, "SWEEP_INTERVAL_S", 0.02)
    env = Counter()

    async def go(url: str, server: ResourcesServer) -> tuple[Any, Any]:
        left, next_one = SimpleAgent(url, replies()), SimpleAgent(url, replies([call("add", number=3)], [text("x")]))
        await left.post("/seed_session", COUNT)
        for entry in server.sessions._sessions._table._entries.values():
            entry.last_used -= 3600
        reply = await next_one.run(COUNT)
        return reply, await left.post("/add", {"number": 1})

    (status, reply), (late, message) = serve_and_call(env, go, max_sessions=1, idle_timeout_s=600)
    assert (status, reply["reward"]) == (200, 1.0)
    assert (late, env.open_states) == (400, 0)
    assert "ends" in json.loads(message)


def test_the_states_that_are_open_are_closed_with_the_server() -> None:
    env = Counter()

    async def go(url: str, _: ResourcesServer) -> int:
        await SimpleAgent(url, replies()).post("/seed_session", COUNT)
        return env.open_states

    assert serve_and_call(env, go) == 1
    assert env.open_states == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"[]", "the body is not a JSON object"),
        (b"{}", "responses_create_params is missing"),
        (b'{"responses_create_params": {"input": "x"}}', "response is not an object"),
        (
            b'{"responses_create_params": {"input": "x"}, "response": {"output": [3]}}',
            r"response.output[0] is not an object",
        ),
        (
            b'{"responses_create_params": {"input": "x"}, "response": {"output": "zz"}}',
            "response.output is not a list of items",
        ),
        (b'{"responses_create_params": {"input": [{"type": 5}]}}', "responses_create_params.input[0]: its type"),
    ],
)
def test_a_bad_request_is_a_422_with_the_reason(body: bytes, message: str) -> None:
    async def go(url: str, _: ResourcesServer) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as http, http.post(f"{url}/verify", data=body) as got:
            return got.status, await got.json()

    status, reply = serve_and_call(Sums(), go)
    assert status == 422
    assert reply["detail"][0]["msg"].startswith(message)


def test_bytes_that_are_no_text_are_a_bad_request_and_no_cookie_of_ours() -> None:
    async def go(url: str, server: ResourcesServer) -> list[int]:
        cookie = b"Rollbook___sums=\xff.\xfe"
        async with aiohttp.ClientSession() as http:
            responses = []
            for path, body in (("/add", b"\xff\xfe"), ("/seed_session", json.dumps(COUNT).encode())):
                headers = {"Cookie": cookie.decode(errors="surrogateescape")}
                async with http.post(f"{url}{path}", data=body, headers=headers) as got:
                    responses.append(got.status)
            return responses

    assert serve_and_call(Counter(), go) == [422, 200]


def test_the_other_routes() -> None:
    async def go(url: str, _: ResourcesServer) -> list[Any]:
        async with aiohttp.ClientSession(url) as http:
            responses = []
            for path in ("/", "/health", "/reverify_mode", "/openapi.json"):
                async with http.get(path) as got:
                    responses.append(await got.json())
            rows = [{"reward": 1.0, "_ng_task_index": 0, "_ng_rollout_index": 0}]
            async with http.post("/aggregate_metrics", json={"verify_responses": rows}) as got:
                responses.append(await got.json())
            async with http.post("/aggregate_metrics", json={}) as got:
                responses.append(got.status)
            return responses

    live, health, mode, described, metrics, refused = serve_and_call(Counter(), go)
    assert live == health == {"status": "ok"}
    assert mode == "unsupported"
    schema = described["paths"]["/add"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["number"]["description"] == "How much to add."
    assert metrics["agent_metrics"]["mean/reward"] == 1.0
    assert refused == 422
    assert serve_and_call(Sums(), go)[2] == "stateless"


def test_a_tool_may_not_have_the_name_of_a_route() -> None:
    with pytest.raises(UsageError, match="tool step: a route of every resources server"):
        serve_and_call(Verify(), lambda url, server: asyncio.sleep(0))


def test_sync_methods_run_in_processes_as_they_do_in_a_run(tmp_path: Path) -> None:
    (tmp_path / "hosted.py").write_text(HOSTED)

    async def go(url: str, _: ResourcesServer) -> Any:
        agents = [SimpleAgent(url, replies([call("pid")], [text("x")])) for _ in range(2)]
        return await asyncio.gather(*(agent.run(COUNT) for agent in agents))

    for status, reply in serve_and_call(f"{tmp_path}/hosted.py:Hosted", go):
        assert (status, reply["reward"]) == (200, 1.0)
        assert reply["rollbook"]["score"]["info"] == {"same": True}


HOSTED = """
import os
from rollbook import Environment, Score, Task, tool

class Hosted(Environment):
    def tasks(self):
        yield Task(id="a", prompt="p")

    def open(self, task):
        return {"pids": [os.getpid()]}

    @tool
    def pid(self, state: dict) -> int:
        "Where am I?"
        state["pids"].append(os.getpid())
        return os.getpid()

    def outcome(self, state):
        return state["pids"]

    def verify(self, task, rollout):
        return Score(1.0, info={"same": len(set(rollout.outcome)) == 1})
"""
