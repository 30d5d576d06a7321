"""The descriptions of our Gym servers: complete, and true of what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from http_api.environments import Desk, Guess
from rollbook import Environment
from rollbook.core import Limits, Settings
from rollbook.environments import load_instance
from rollbook.gym.harness import open_runtime
from rollbook.gym.server.serve import (
    ServeOptions,
    ServerIdentity,
    make_identity_operation,
    open_agent_app,
    open_resources_app,
)
from support.endpoint import Endpoint
from support.openapi import check_refusals, check_routes, check_schemas, open_client

OpenApp = Callable[[], AbstractAsyncContextManager[web.Application]]
IDENTITY = make_identity_operation(ServerIdentity("env", "1", "d"))


@asynccontextmanager
async def open_resources(env: Environment) -> AsyncIterator[web.Application]:
    async with open_runtime(load_instance(env), Limits(), Settings(hosts=1)) as runtime:
        options = ServeOptions(env="env", head=True)
        async with open_resources_app(options, "env", runtime, lambda _: None, [IDENTITY]) as app:
            yield app


@asynccontextmanager
async def open_agent() -> AsyncIterator[web.Application]:
    async with Endpoint() as endpoint, open_runtime(load_instance(Desk()), Limits(), Settings(hosts=1)) as runtime:
        options = ServeOptions(env="env", model=[endpoint.url], role="agent", head=True)
        async with open_agent_app(options, "env", runtime, lambda _: None, [IDENTITY]) as app:
            yield app


@pytest.mark.parametrize(
    ("open_app", "described"),
    [
        (lambda: open_resources(Desk()), {"/add", "/echo", "/{tool}", "/verify", "/rollbook", "/server_instances"}),
        (lambda: open_resources(Guess()), {"/reset", "/step", "/close", "/{tool}", "/seed_session"}),
        (open_agent, {"/run", "/v1/responses", "/ng-rollout/{rollout}/v1/responses", "/rollbook"}),
    ],
    ids=["tools", "gymnasium", "agent"],
)
def test_every_route_is_described_and_refuses_what_it_should(open_app: OpenApp, described: set[str]) -> None:
    async def main() -> None:
        async with open_app() as app, open_client(app) as client:
            async with client.get("/openapi.json") as reply:
                description = await reply.json()
            assert described <= set(description["paths"])
            check_routes(app, description)
            check_schemas(description)
            await check_refusals(client, description, {})

    asyncio.run(main())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": {}}, "responses_create_params.tools is not a list"),
        ({"instructions": {"a": 1}}, "responses_create_params.instructions is not text"),
    ],
)
def test_a_row_with_a_field_of_the_wrong_type_is_refused(more: dict[str, Any], words: str) -> None:
    async def main() -> None:
        row = {"responses_create_params": {"input": "hi", **more}}
        async with (
            open_resources(Desk()) as app,
            open_client(app) as client,
            client.post("/seed_session", json=row) as reply,
        ):
            assert (reply.status, (await reply.json())["detail"][0]["msg"]) == (422, words)

    asyncio.run(main())


def test_a_post_to_a_route_that_is_only_read_is_a_wrong_method_and_no_tool() -> None:
    async def main() -> None:
        async with open_resources(Desk()) as app, open_client(app) as client:
            for path in ("/health", "/reverify_mode", "/openapi.json", "/rollbook", "/server_instances"):
                async with client.post(path, json={}) as reply:
                    assert (reply.status, reply.headers["Allow"]) == (405, "GET,HEAD")
            async with client.post("/healthy", json={}) as reply:
                assert reply.status == 400  # a tool, but there is no session

    asyncio.run(main())
