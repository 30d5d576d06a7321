"""Routes and their description from one list."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from rollbook.errors import UsageError
from rollbook.processes import OBJECT, Operation, add_operations, describe_operations, read_query
from support.openapi import check_routes, open_client


class Query(msgspec.Struct):
    run: str
    limit: Annotated[int, msgspec.Meta(ge=0, le=9)] = 5
    desc: bool = False


async def answer(_: web.Request) -> web.StreamResponse:
    return web.json_response({})


OPERATIONS = [
    Operation("GET", "/things/{name:.+}", "one thing", answer, OBJECT, query=Query),
    Operation("GET", "/events", "a stream", answer, {}, media=("text/event-stream",)),
    Operation("POST", "/things", "a new thing", answer, OBJECT, {400: OBJECT}, body=Query, open=True),
]


def read(app: web.Application) -> dict:
    async def main() -> dict:
        async with open_client(app) as client, client.get("/openapi.json") as reply:
            return await reply.json()

    return asyncio.run(main())


def make_app() -> web.Application:
    app = web.Application()
    add_operations(app, describe_operations("things", OPERATIONS, security={"key": {"type": "http"}}))
    return app


def test_a_description_has_every_route_with_its_parameters_and_bodies() -> None:
    description = read(make_app())
    check_routes(make_app(), description)
    thing = description["paths"]["/things/{name}"]["get"]
    assert [(each["name"], each["in"], each["required"]) for each in thing["parameters"]] == [
        ("name", "path", True),
        ("run", "query", True),
        ("limit", "query", False),
        ("desc", "query", False),
    ]
    assert thing["security"] == [{"key": []}]
    made = description["paths"]["/things"]["post"]
    assert made["security"] == []
    assert made["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Query"}
    assert description["components"]["schemas"]["Query"]["required"] == ["run"]


def test_a_route_that_is_not_described_is_noticed() -> None:
    app = make_app()
    app.router.add_get("/forgotten", answer)
    with pytest.raises(AssertionError):
        check_routes(app, read(make_app()))


def test_a_description_of_no_route_is_noticed() -> None:
    description = read(make_app())
    description["paths"]["/gone"] = {"get": {}}
    with pytest.raises(AssertionError):
        check_routes(make_app(), description)


def test_a_stream_has_no_head() -> None:
    methods = {(route.method, route.resource.canonical) for route in make_app().router.routes() if route.resource}
    assert ("HEAD", "/things/{name}") in methods
    assert ("HEAD", "/events") not in methods


def test_parameters_are_read_by_their_types() -> None:
    assert read_query(make_mocked_request("GET", "/?run=a&limit=9&desc=1&other=x"), Query) == Query("a", 9, True)
    assert read_query(make_mocked_request("GET", "/?run=a&run=b"), Query) == Query("a")


@pytest.mark.parametrize("query", ["", "run=", "run=a&limit=10", "run=a&limit=-1", "run=a&limit=", "run=a&desc=yes"])
def test_parameters_that_do_not_fit_are_refused(query: str) -> None:
    with pytest.raises(UsageError, match=r"the request (names no run|is invalid)"):
        read_query(make_mocked_request("GET", f"/?{query}"), Query)
