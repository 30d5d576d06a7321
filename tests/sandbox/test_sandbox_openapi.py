"""The description of the sandbox server: complete, and true of what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox.server import SandboxServer
from support.openapi import check_refusals, check_routes, check_schemas, open_client

HEADERS = {"Authorization": "Bearer s3cret"}


def ask(path: str, body: Any) -> tuple[int, Any]:
    async def go() -> tuple[int, Any]:
        async with (
            Sandbox(Limits(seconds=1), size=1) as box,
            open_client(make_app(box)) as client,
            client.post(path, json=body, headers=HEADERS) as reply,
        ):
            return reply.status, await reply.json()

    return asyncio.run(go())


def make_app(box: Sandbox) -> Any:
    return SandboxServer(box, "s3cret", 8).make_app()


def test_every_route_is_described_and_refuses_what_it_should() -> None:
    async def main() -> None:
        async with Sandbox(Limits(seconds=1), size=1) as box:
            app = make_app(box)
            async with open_client(app) as client:
                async with client.get("/openapi.json") as reply:
                    assert reply.status == 401
                async with client.get("/openapi.json", headers=HEADERS) as reply:
                    description = await reply.json()
                check_routes(app, description, "/{token}")
                check_schemas(description)
                await check_refusals(client, description, HEADERS)

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/run", "/run_code", "/sessions"])
@pytest.mark.parametrize("text", ["\x8dUk", "题", "a", "%%%%"])
def test_a_file_that_is_not_base64_is_a_mistake_of_the_request(path: str, text: str) -> None:
    status, said = ask(path, {**({} if path == "/sessions" else {"code": "1"}), "files": {"a": text}})
    assert (status, said) == (400, {"error": "file 'a' is not base64"})


def test_what_is_not_served_is_refused_in_the_form_of_every_error() -> None:
    assert ask("/nowhere", {}) == (404, {"error": "Not Found"})
    assert ask("/health", {}) == (405, {"error": "Method Not Allowed"})


@pytest.mark.parametrize("entry", ["", "f g", "\x00", "f.x", "f()"])
def test_a_name_that_no_program_can_define_is_not_the_fault_of_the_code(entry: str) -> None:
    given = {"code": "def f(x): return x", "entry": entry}
    status, said = ask("/grade/function", {**given, "tests": "assert f(1) == 1"})
    assert (status, said["error"]) == (400, f"entry {entry!r}: give the name of a function or class")
    status, said = ask("/grade/calls", {**given, "cases": ["l", [["t", [["l", [1]], 1]]]]})
    assert (status, said["error"]) == (400, f"entry {entry!r}: give the name of a function or class")


def test_a_negative_tolerance_is_refused() -> None:
    asked = {"code": "print(0.5)", "cases": [["", "0.50"]]}
    assert ask("/grade/inputs", asked)[1]["passed"] is True
    status, said = ask("/grade/inputs", {**asked, "rule": {"tolerance": -1}})
    assert (status, "tolerance" in said["error"]) == (400, True)
