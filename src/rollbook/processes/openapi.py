"""The routes of a server, each stated once: the application's routes and its OpenAPI description come from one list.

An `Operation` is a route with what it takes and returns. `add_operations` adds routes to an application;
`describe_operations` adds one more to the list, `GET /openapi.json`, which describes them all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TypeAlias, TypeVar

import msgspec
from aiohttp import web

from rollbook.core import JSON
from rollbook.errors import UsageError
from rollbook.processes.http_server import json_response

DESCRIPTION_PATH = "/openapi.json"
JSON_TYPE, EVENTS_TYPE = "application/json", "text/event-stream"
ONE_LINE: dict[str, JSON] = {"type": "string", "pattern": r"^[^\r\n]*$"}
"""The schema of an error message."""

OBJECT: dict[str, JSON] = {"type": "object"}
TEXT: dict[str, JSON] = {"type": "string", "contentMediaType": "text/plain"}
"""The schema of an error that is plain text, not JSON."""

Schema: TypeAlias = type[msgspec.Struct] | dict[str, JSON]
RequestHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Q = TypeVar("Q", bound=msgspec.Struct)

_PATH_PARAMETER = re.compile(r"{(\w+)(?::[^{}]*)?}")
_REFERENCE = "#/components/schemas/{name}"


@dataclass(frozen=True)
class Operation:
    """One route. `reply`, `body` and `errors` are msgspec types or JSON Schemas, `query` a struct of the parameters.

    `media` lists the content types of the reply; `reply` is the schema of the JSON one. `open`: it needs no
    credentials. `links` names the operations that take a field of the reply: {operation id: {parameter: field}}.
    """

    method: str
    path: str
    summary: str
    handler: RequestHandler
    reply: Schema
    errors: Mapping[int, Schema] = field(default_factory=dict)
    body: Schema | None = None
    body_required: bool = True
    query: type[msgspec.Struct] | None = None
    media: tuple[str, ...] = (JSON_TYPE,)
    open: bool = False
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    name: str = ""

    @property
    def described_path(self) -> str:
        """The path as OpenAPI writes it: parameters have no patterns."""
        return _PATH_PARAMETER.sub(r"{\1}", self.path)

    @property
    def operation_id(self) -> str:
        """A name that no other operation of the server has."""
        words = re.findall(r"\w+", self.described_path)
        return self.name or "_".join([self.method.lower(), *words])


def add_operations(app: web.Application, operations: Iterable[Operation], prefix: str = "") -> None:
    """Add the routes to an application. A GET whose reply is a stream has no HEAD: it would never end."""
    for each in operations:
        if each.method == "GET":
            app.router.add_get(prefix + each.path, each.handler, allow_head=EVENTS_TYPE not in each.media)
        else:
            app.router.add_route(each.method, prefix + each.path, each.handler)


def describe_operations(
    title: str,
    operations: Sequence[Operation],
    *,
    security: Mapping[str, JSON] | None = None,
    guard: Callable[[RequestHandler], RequestHandler] = lambda handler: handler,
    errors: Mapping[int, Schema] | None = None,
) -> list[Operation]:
    """Return the operations and `GET /openapi.json`, which describes them; `guard` checks its credentials.

    `security` are the security schemes of the server, any of which gives access.
    """

    async def describe(_: web.Request) -> web.StreamResponse:
        return json_response(make_description())

    @functools.cache
    def make_description() -> JSON:
        return make_openapi(title, every, security or {})

    every = [*operations, Operation("GET", DESCRIPTION_PATH, "this description", guard(describe), OBJECT, errors or {})]
    return every


def make_openapi(title: str, operations: Sequence[Operation], security: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the OpenAPI description of the operations."""
    schemas = _SchemaTable(operations)
    paths: dict[str, dict[str, JSON]] = {}
    for each in operations:
        paths.setdefault(each.described_path, {})[each.method.lower()] = _describe(each, schemas, security)
    components: dict[str, JSON] = {"schemas": schemas.components}
    if security:
        components["securitySchemes"] = dict(security)
    info = {"title": title, "version": version("rollbook")}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


class _SchemaTable:
    """The schemas of the msgspec types that operations name; other types refer to them."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        named = [schema for each in operations for schema in (each.reply, each.body, *each.errors.values())]
        types = list(dict.fromkeys(schema for schema in named if isinstance(schema, type)))
        references, self.components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
        self._references = dict(zip(types, references, strict=True))

    def get(self, schema: Schema) -> dict[str, JSON]:
        return self._references[schema] if isinstance(schema, type) else schema


def _describe(operation: Operation, schemas: _SchemaTable, security: Mapping[str, JSON]) -> dict[str, JSON]:
    described: dict[str, JSON] = {"operationId": operation.operation_id, "summary": operation.summary}
    if parameters := [*_describe_path(operation.path), *_describe_query(operation.query)]:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {JSON_TYPE: {"schema": schemas.get(operation.body)}}
        described["requestBody"] = {"required": operation.body_required, "content": content}
    described["responses"] = _describe_replies(operation, schemas)
    if security:
        described["security"] = [] if operation.open else [{name: []} for name in security]
    return described


def _describe_replies(operation: Operation, schemas: _SchemaTable) -> dict[str, JSON]:
    reply = schemas.get(operation.reply)
    content = {media: {"schema": reply if media == JSON_TYPE else {}} for media in operation.media}
    links = {
        target: {"operationId": target, "parameters": {to: f"$response.body#/{name}" for to, name in fields.items()}}
        for target, fields in operation.links.items()
    }
    replies: dict[str, JSON] = {"200": {"description": "OK", "content": content, **({"links": links} if links else {})}}
    for status, schema in sorted(operation.errors.items()):
        described = schemas.get(schema)
        content = {described.get("contentMediaType", JSON_TYPE): {"schema": described}}
        replies[str(status)] = {"description": "an error, in one line", "content": content}
    return replies


def _describe_path(path: str) -> list[JSON]:
    text = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": text} for name in _PATH_PARAMETER.findall(path)]


def _describe_query(kind: type[msgspec.Struct] | None) -> list[JSON]:
    if kind is None:
        return []
    (_,), components = msgspec.json.schema_components([kind])
    schema = components[kind.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema["required"], "schema": field_schema}
        for name, field_schema in schema["properties"].items()
    ]


def read_query(request: web.Request, kind: type[Q]) -> Q:
    """Return the parameters of a request as a struct; UsageError says what is missing or wrong. Others are ignored."""
    given = {name: request.query[name] for name in kind.__struct_fields__ if name in request.query}
    missing = [each.name for each in msgspec.structs.fields(kind) if each.required and not given.get(each.name)]
    if missing:
        raise UsageError(f"the request names no {missing[0]}")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the request is invalid: {error}") from None
