"""The description of the viewer: complete, and true of what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from rollbook.viewer import RunCache, RunFolder
from rollbook.viewer.server import AccessGuard, make_app
from support.openapi import check_refusals, check_routes, check_schemas, open_client
from support.viewing import TOKEN, Served

HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def test_every_route_is_described_and_refuses_what_it_should(runs: Path) -> None:
    async def main() -> None:
        app = make_app(RunCache(RunFolder(runs)), TOKEN)
        async with open_client(app) as client:
            async with client.get("/openapi.json") as reply:
                assert reply.status == 401
            async with client.get("/openapi.json", headers=HEADERS) as reply:
                description = await reply.json()
                assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
            check_routes(app, description, AccessGuard(TOKEN).prefix.rstrip("/"))
            check_schemas(description)
            await check_refusals(client, description, HEADERS)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("search?run=baseline", "the request names no text"),
        ("search?run=&text=x", "the request names no run"),
        ("tasks?run=baseline&desc=yes", "the request is invalid: Expected `bool`, got `str` - at `$.desc`"),
        ("tasks?run=baseline&limit=501", "the request is invalid: Expected `int` <= 500 - at `$.limit`"),
        ("rollout?run=baseline&task=x&sample=0&attempt=", "Expected `int | null`, got `str` - at `$.attempt`"),
    ],
)
def test_parameters_that_do_not_fit_are_refused_before_anything_is_sent(served: Served, path: str, words: str) -> None:
    status, _, body = served.ask(f"/api/{path}")
    assert status == 400
    assert words in json.loads(body)["error"]


def test_an_error_that_quotes_the_request_is_one_line(served: Served) -> None:
    status, _, body = served.ask("/api/task?run=baseline&task=" + quote("a\nb\rc\u2028d"))
    assert status == 400
    assert len(json.loads(body)["error"].splitlines()) == 1


def test_a_refused_method_names_the_allowed_ones(served: Served) -> None:
    status, headers, _ = served.ask("/api/runs", "POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
