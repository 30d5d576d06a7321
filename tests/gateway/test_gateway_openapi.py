"""The description of the gateway: complete, and true of what is refused; what fuzzing over it has found."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from support.endpoint import Endpoint
from support.gateways import KEY, Gate
from support.openapi import check_refusals, check_routes, check_schemas

HEADERS = {"Authorization": f"Bearer {KEY}"}


def test_every_route_is_described_and_refuses_what_it_should() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            async with gate.http.get(f"{gate.url}/openapi.json") as reply:
                assert reply.status == 401
            async with gate.http.get(f"{gate.url}/openapi.json", headers=HEADERS) as reply:
                description = await reply.json()
            check_routes(gate._runner.app, description)
            check_schemas(description)
            place = await gate.open()
            async with aiohttp.ClientSession(gate.url) as client:
                await check_refusals(client, description, HEADERS, rollout=place.rollout)
            assert not endpoint.counts["chat"]

    asyncio.run(main())


def ask(path: str, body: Any) -> tuple[int, Any, int]:
    """The status and the body of an answer, and how often the model was asked."""

    async def main() -> tuple[int, Any, int]:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            status, said = await gate.post(await gate.open(), path, json=body)
            return status, said, endpoint.counts["chat"]

    return asyncio.run(main())


USER = [{"role": "user", "content": "hi"}]


def call(**function: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", **function}}]}]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": USER, "stream": "false"}, "stream is neither true nor false but 'false'"),
        ({"messages": USER, "return_token_ids": 1}, "return_token_ids is neither true nor false but 1"),
        ({"messages": USER, "logprobs": "no"}, "logprobs is neither true nor false but 'no'"),
        ({"messages": USER, "model": 5}, "request.model is not text"),
        ({"messages": USER, "tools": {}}, "tools is not a list"),
        ({"messages": USER, "n": True}, "n is True: every call has one answer here; ask again for another"),
        ({"messages": USER, "max_completion_tokens": 0}, "max_tokens is 0: give at least 1"),
        ({"messages": USER, "max_tokens": 0, "max_completion_tokens": 9}, "max_tokens is 0: give at least 1"),
        ({"messages": [{"role": "user", "content": False}]}, "messages[0].content is not a list"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "[0].text is not text"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls is not a list"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}, "tool_call_id is not text"),
        ({"messages": call(arguments={"a": 1})}, "messages[0].tool_calls[0].arguments is not text"),
    ],
)
def test_a_field_of_the_wrong_type_in_chat_completions_is_refused(body: dict[str, Any], words: str) -> None:
    status, said, asked = ask("chat/completions", body)
    assert (status, asked) == (400, 0)
    assert words in said["error"]["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": USER, "tools": {}}, "tools is not a list"),
        ({"messages": USER, "tools": [{"name": "f", "input_schema": 5}]}, "input_schema is not an object but 5"),
        ({"messages": USER, "tool_choice": "any"}, "tool_choice is not an object but 'any'"),
        ({"messages": USER, "system": 0}, "system is not a list"),
        ({"messages": USER, "stream": "false"}, "stream is neither true nor false"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, ".text is not text"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": [1]}]}
                ]
            },
            "tool_use.input is not an object but [1]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 0}]}]},
            "tool_result is not a list",
        ),
    ],
)
def test_a_field_of_the_wrong_type_in_messages_is_refused(body: dict[str, Any], words: str) -> None:
    status, said, asked = ask("messages", body)
    assert (status, asked) == (400, 0)
    assert words in said["error"]["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": "hi", "tools": {}}, "request.tools is not a list"),
        ({"input": "hi", "instructions": {"a": 1}}, "request.instructions is not text"),
        ({"input": "hi", "stream": 1}, "stream is neither true nor false but 1"),
    ],
)
def test_a_field_of_the_wrong_type_in_responses_is_refused(body: dict[str, Any], words: str) -> None:
    status, said, asked = ask("responses", body)
    assert (status, asked) == (400, 0)
    assert words in said["error"]["message"]


def test_a_call_without_arguments_has_none() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            history = [*call(), {"role": "tool", "content": "1", "tool_call_id": "c"}]
            assert (await gate.chat(await gate.open(), *history))[0] == 200
            assert endpoint.bodies[0]["messages"][0]["tool_calls"][0]["function"]["arguments"] == "{}"

    asyncio.run(main())


@pytest.mark.parametrize("seed", [False, True, 1.5, -1, 2**31, "1"])
def test_a_seed_that_is_no_whole_number_is_refused(seed: object) -> None:
    async def main() -> tuple[int, Any]:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            return await gate.manage("POST", json={"seed": seed})

    status, said = asyncio.run(main())
    assert (status, said["error"]["message"]) == (400, "seed is not a whole number from 0 to 2147483647")


def test_an_error_that_quotes_the_request_is_one_line() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open()
            for path in ("models/a%0Ab", "models/a%0D", "no%0Awhere", "messages/no%0Awhere"):
                async with gate.http.get(f"{place.openai_base_url}/{path}") as reply:
                    said = (await reply.json())["error"]["message"]
                    assert (reply.status, len(said.splitlines())) == (404, 1)

    asyncio.run(main())


def test_another_method_is_refused_with_the_allowed_ones() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open()
            async with gate.http.put(f"{place.openai_base_url}/messages") as reply:
                assert (reply.status, reply.headers["Allow"]) == (405, "POST")
                assert (await reply.json())["type"] == "error"

    asyncio.run(main())
