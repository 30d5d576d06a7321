"""Compare a server with its OpenAPI description: routes, schemas, refusals, malformed bodies."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from jsonschema import Draft202012Validator

METHODS = ("get", "post", "put", "patch", "delete")
MALFORMED = {
    "nothing": b"",
    "cut": b'{"code": "1',
    "not UTF-8": b'{"code": "\xff"}',
    "a list": b"[1]",
    "a text": b'"code"',
    "NaN": b'{"code": NaN}',
    "half a character": rb'{"code": "\ud800", "\udc00": 1}',
    "too deep": b"[" * 100_000,
    "wrong types": b'{"code": 1, "messages": 5, "input": 5, "responses_create_params": 5, "verify_responses": 5, '
    b'"name": 5, "files": 5, "snapshot": 5}',
}


@asynccontextmanager
async def open_client(app: web.Application) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of an application that listens."""
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            yield client
    finally:
        await runner.cleanup()


def list_routes(app: web.Application, *prefixes: str) -> set[tuple[str, str]]:
    """The routes of an application, with their methods; below `prefixes` are the same routes once more."""
    found = set()
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        prefix = next((each for each in prefixes if path.startswith(f"{each}/") and path != each), "")
        found.add((route.method.lower(), path.removeprefix(prefix)))
    return found


def list_operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The operations of a description: method, path and the rest."""
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            yield method, path, operation


def check_routes(app: web.Application, description: dict[str, Any], *prefixes: str) -> None:
    """Every route is described, and every description is of a route; HEAD belongs to GET."""
    described = {(method, path) for method, path, _ in list_operations(description)}
    routes = {(method, path) for method, path in list_routes(app, *prefixes) if method != "head"}
    assert routes == described
    assert {path for method, path in list_routes(app, *prefixes) if method == "head"} <= {p for _, p in described}


def check_schemas(description: dict[str, Any]) -> None:
    """Every schema is one, every reference has a target, every name is used once."""
    names = [operation["operationId"] for _, _, operation in list_operations(description)]
    assert len(names) == len(set(names))
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description)):
        assert reference in description["components"]["schemas"]
    for _, path, operation in list_operations(description):
        assert {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"} == {
            *re.findall(r"{(\w+)}", path)
        }
        for part in (*operation["responses"].values(), operation.get("requestBody", {})):
            for content in part.get("content", {}).values():
                Draft202012Validator.check_schema(content["schema"])


async def check_refusals(
    client: aiohttp.ClientSession, description: dict[str, Any], headers: dict[str, str], **parameters: str
) -> None:
    """Other methods, wrong tokens and malformed bodies are refused, each by an error as it is described."""
    for method, path, operation in list_operations(description):
        url = re.sub(r"{(\w+)}", lambda found: parameters.get(found[1], "none"), path)
        for other in set(METHODS) - set(description["paths"][path]):
            status, said = await _ask(client, other, url, headers)
            assert status in (404, 405), (other, path, status)
            assert said
            assert b"\n" not in said
        if operation.get("security"):
            for wrong in ({}, {"Authorization": "Bearer wrong"}):
                status, said = await _ask(client, method, url, wrong)
                assert status == 401, (method, path, status)
                check_error(description, operation, status, said)
        if "requestBody" in operation and "text/plain" not in operation["responses"]["200"]["content"]:
            await check_malformed(client, description, operation, method, url, headers)


async def check_malformed(
    client: aiohttp.ClientSession,
    description: dict[str, Any],
    operation: dict[str, Any],
    method: str,
    url: str,
    headers: dict[str, str],
) -> None:
    """Every malformed body is refused."""
    for name, body in MALFORMED.items():
        if name == "nothing" and not operation["requestBody"]["required"]:
            continue
        status, said = await _ask(client, method, url, {**headers, "Content-Type": "application/json"}, body)
        assert 400 <= status < 500, (method, url, name, status, said)
        check_error(description, operation, status, said)


def check_error(description: dict[str, Any], operation: dict[str, Any], status: int, said: bytes) -> None:
    """An error is what the description says that it is, in one line."""
    (content,) = operation["responses"][str(status)]["content"].values()
    schema = {**content["schema"], "components": description["components"]}
    Draft202012Validator(schema).validate(json.loads(said))
    assert b"\n" not in said


async def _ask(
    client: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, bytes]:
    async with client.request(method, url, headers=headers, data=body) as reply:
        return reply.status, await reply.read()
