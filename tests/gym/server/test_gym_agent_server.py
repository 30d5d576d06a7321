"""Our agents behind Gym's /run, against a real endpoint that reports tokens as vLLM does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import yaml

from rollbook import Environment, Score, Task, tool
from rollbook.core import Limits, Settings
from rollbook.environments import load_instance
from rollbook.gym.harness import open_runtime
from rollbook.gym.server.serve import ServeOptions, open_agent_app
from support.endpoint import Endpoint
from support.gym_client import listening

Post = Callable[[str, Any], Awaitable[tuple[int, Any]]]


class Adding(Environment):
    """A sum that may be worked out with a tool."""

    def tasks(self):
        yield Task(id="sum", prompt="12 + 30", answer="42")

    async def open(self, task):
        return []

    @tool
    async def add(self, a: int, b: int, state: list) -> int:
        """Add two numbers."""
        state.append(a + b)
        return a + b

    async def outcome(self, state):
        return state

    async def verify(self, task, rollout):
        if task.fields.get("broken"):
            raise RuntimeError("cannot say")
        return Score(float(task.answer in rollout.text), answer=rollout.text)


ROW = {
    "id": "sum",
    "responses_create_params": {"input": [{"role": "user", "content": "12 + 30"}]},
    "expected_answer": "42",
    "_ng_task_index": 0,
    "_ng_rollout_index": 1,
    "kept": True,
}


def serve_and_call(endpoint: Endpoint, go: Callable[[str, Post], Awaitable[Any]], **options: Any) -> Any:
    async def work() -> Any:
        async with endpoint, open_runtime(load_instance(Adding()), Limits(), Settings()) as runtime:
            settings = Settings(attempts={"model_unavailable": 1}, outage_s=0.2)
            serving = ServeOptions(env="adding", model=[endpoint.url], settings=settings, role="agent", **options)
            async with (
                open_agent_app(serving, "adding", runtime, lambda _: None) as app,
                listening(app) as url,
                aiohttp.ClientSession(url) as http,
            ):

                async def post(path: str, body: Any) -> tuple[int, Any]:
                    async with http.post(path, json=body) as got:
                        return got.status, await got.json()

                return await go(url, post)

    return asyncio.run(work())


def ran(endpoint: Endpoint, row: dict[str, Any], path: str = "/run") -> tuple[int, Any]:
    return serve_and_call(endpoint, lambda _, post: post(path, row))


def test_a_row_is_played_and_scored_with_the_tokens_where_trainers_look() -> None:
    status, reply = ran(Endpoint(vllm=True), ROW)
    assert status == 200
    assert {name: reply[name] for name in ROW} == ROW
    assert (reply["reward"], reply["rollbook"]["outcome"]) == (1.0, [42])
    call, result, answer = reply["response"]["output"]
    assert (call["type"], call["name"], result["output"]) == ("function_call", "add", "42")
    assert "prompt_token_ids" not in result
    for item in (call, answer):
        assert len(item["generation_token_ids"]) == len(item["generation_log_probs"]) > 0
    seen = call["prompt_token_ids"] + call["generation_token_ids"]
    assert answer["prompt_token_ids"][: len(seen)] == seen
    usage = reply["response"]["usage"]
    assert usage["input_tokens"] == len(call["prompt_token_ids"]) + len(answer["prompt_token_ids"])
    assert (reply["response"]["status"], reply["response"]["model"]) == ("completed", "mock")


def test_usage_has_numbers_alone_as_that_of_gyms_own_agents() -> None:
    """Types of Gym 0.4 refuse null for what nobody counted."""
    for path, body in (("/run", ROW), ("/v1/responses", ROW["responses_create_params"])):
        status, reply = ran(Endpoint(), body, path)  # type: ignore[arg-type]
        usage = reply["response"]["usage"] if path == "/run" else reply["usage"]
        details = usage["input_tokens_details"], usage["output_tokens_details"]
        assert (status, details) == (200, ({"cached_tokens": 0}, {"reasoning_tokens": 0}))


def test_the_rows_own_sampling_is_used() -> None:
    endpoint = Endpoint()
    extra = json.dumps({"seed": 77, "top_k": 3})
    params = {
        **ROW["responses_create_params"],
        "temperature": 0.25,
        "max_output_tokens": 9,
        "metadata": {"extra_body": extra},
    }  # type: ignore[dict-item]
    ran(endpoint, {**ROW, "responses_create_params": params})
    body = endpoint.bodies[0]
    assert (body["temperature"], body["max_tokens"], body["seed"], body["top_k"]) == (0.25, 9, 77, 3)


def test_a_failed_rollout_has_no_reward_and_is_no_http_error() -> None:
    status, reply = ran(Endpoint(), {**ROW, "broken": True})
    assert status == 200
    assert (reply["_ng_failure_class"], reply["_ng_failure_message"]) == ("verifier_error", "RuntimeError: cannot say")
    assert "reward" not in reply
    assert (reply["mask_sample"], reply["_ng_failure_terminal"], reply["kept"]) == (True, True, True)
    assert reply["response"]["output"]


def test_an_endpoint_that_fails_is_a_failure_that_may_be_tried_again() -> None:
    async def go(_: str, post: Post) -> Any:
        endpoint.mode = "500"
        return await post("/run", ROW)

    endpoint = Endpoint()
    status, reply = serve_and_call(endpoint, go)
    assert (status, reply["_ng_failure_class"]) == (200, "model_unavailable")
    assert "reward" not in reply
    assert "_ng_failure_terminal" not in reply


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/0-1", "/ng-rollout/0-1/training-token-capture"])
def test_a_response_is_a_whole_rollout_without_a_score(prefix: str) -> None:
    status, reply = ran(Endpoint(vllm=True), ROW["responses_create_params"], f"{prefix}/v1/responses")
    assert status == 200
    assert [item["type"] for item in reply["output"]] == ["function_call", "function_call_output", "message"]
    assert "reward" not in reply


def test_a_response_that_failed_is_a_500() -> None:
    async def go(_: str, post: Post) -> Any:
        endpoint.mode = "400"
        return await post("/v1/responses", ROW["responses_create_params"])

    endpoint = Endpoint()
    status, reply = serve_and_call(endpoint, go)
    assert status == 500
    assert reply.startswith("model_rejected in model")


@pytest.mark.parametrize(("path", "body"), [("/run", {}), ("/v1/responses", {}), ("/v1/responses", {"input": 3})])
def test_a_bad_request_is_a_422(path: str, body: dict[str, Any]) -> None:
    status, reply = ran(Endpoint(), body, path)
    assert status == 422
    assert reply["detail"][0]["msg"]


def test_the_head_says_where_the_agent_is() -> None:
    async def go(url: str, post: Post) -> Any:
        async with aiohttp.ClientSession(url) as http:
            replies = []
            for path in ("/global_config_dict_yaml", "/server_instances"):
                async with http.get(path) as got:
                    replies.append(await got.json())
            return url, *replies, await post("/aggregate_metrics", {"verify_responses": []})

    url, text, instances, metrics = serve_and_call(Endpoint(), go, head=True)
    config = yaml.safe_load(text)
    block = config["adding_agent"]["responses_api_agents"]["rollbook"]
    assert f"http://{block['host']}:{block['port']}" == url == instances[0]["url"]
    assert (instances[0]["process_name"], instances[0]["server_type"]) == ("adding_agent", "responses_api_agents")
    assert metrics == (200, {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}})
