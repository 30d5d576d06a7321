"""The server described for others: its routes, and the arguments of its tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from rollbook.core.json import JSON


def openapi(title: str, posts: Mapping[str, str], gets: Mapping[str, str], tools: Sequence[JSON] = ()) -> JSON:
    """An OpenAPI document: routes with what each is for, and `tools` in the form of chat completions."""
    paths: dict[str, JSON] = {path: {"get": _operation(path, summary)} for path, summary in gets.items()}
    for path, summary in posts.items():
        paths.setdefault(path, {})["post"] = {**_operation(path, summary), "requestBody": _body({"type": "object"})}
    for tool in tools:
        function = tool["function"]
        named = _operation(f"/{function['name']}", function.get("description", ""))
        paths[f"/{function['name']}"] = {"post": {**named, "requestBody": _body(function.get("parameters"))}}
    return {"openapi": "3.1.0", "info": {"title": title, "version": version("rollbook")}, "paths": paths}


def _operation(path: str, summary: str) -> dict[str, JSON]:
    return {"operationId": path.strip("/") or "health", "summary": summary, "responses": {"200": {"description": "OK"}}}


def _body(schema: JSON) -> JSON:
    return {"required": True, "content": {"application/json": {"schema": schema or {"type": "object"}}}}
