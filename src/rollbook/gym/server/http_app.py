"""Shared by our Gym servers: JSON replies and errors, the session cookie, the common routes, the head routes.

An error is a JSON string, a bad request a list of details, as Gym's servers and clients expect. The session cookie
holds a random name with a signature, so that it cannot be guessed or forged. The head routes list the servers for Gym's
collector and NeMo RL:

    GET /global_config_dict_yaml   a JSON string that holds YAML: each instance with its host and port
    GET /server_instances          the same as a list
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar

import yaml
from aiohttp import web

from rollbook.core import JSON
from rollbook.errors import RollbookError, RolloutFailed, UsageError
from rollbook.gym.metrics import aggregate_metrics
from rollbook.gym.rows import RESOURCES, VERIFIER_METADATA
from rollbook.models import CREATE_PARAMS
from rollbook.processes import (
    OBJECT,
    ONE_LINE,
    NoSession,
    Operation,
    Schema,
    add_operations,
    copy_allow,
    describe_operations,
    json_response,
    read_json_object,
)

_NOT_A_WORD = re.compile(r"[^A-Za-z0-9_-]+")


class SessionCookies:
    """Reads and writes one server's cookie; cookies of other servers, which agents send along, are not touched."""

    def __init__(self, server: str) -> None:
        self.name = f"Rollbook___{make_slug(server)}"
        self._secret = secrets.token_bytes(32)

    def read(self, request: web.Request) -> str:
        """Return the session of a request; empty if our cookie is missing or not signed by us."""
        session, _, signature = request.cookies.get(self.name, "").rpartition(".")
        received = signature.encode(errors="replace")  # a header may hold any bytes
        return session if hmac.compare_digest(received, self._sign(session).encode()) else ""

    def write(self, response: web.StreamResponse, session: str) -> None:
        """Set the session cookie of a reply."""
        response.set_cookie(self.name, f"{session}.{self._sign(session)}", httponly=True, samesite="lax")

    def _sign(self, session: str) -> str:
        digest = hmac.digest(self._secret, session.encode(errors="replace"), hashlib.sha256)
        return urlsafe_b64encode(digest).decode().rstrip("=")


def make_session_id() -> str:
    """Return a random session name."""
    return secrets.token_urlsafe(16)


def describe_no_session(idle_timeout_s: float) -> str:
    """Return what a request is answered that names no open session."""
    return f"no session: POST /seed_session first; one that is unused for {idle_timeout_s:g} s ends"


def make_slug(text: str) -> str:
    """Return a text as a word for names of cookies, servers and files.

    >>> make_slug("envs/sums.py:Sums?top=9")
    'envs_sums_py_Sums_top_9'
    """
    return _NOT_A_WORD.sub("_", text).strip("_") or "environment"


MAX_BODY_BYTES = 256 << 20
CURRENT_SESSION: ContextVar[str] = ContextVar("session")
"""The session of the current request; its value when the request ends is written to the reply's cookie."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


DETAILS: dict[str, JSON] = {
    "type": "object",
    "properties": {"detail": {"type": "array", "items": {"type": "object", "required": ["loc", "msg", "type"]}}},
    "required": ["detail"],
}
REFUSED: dict[str, JSON] = {"type": "object", "properties": {"detail": ONE_LINE}, "required": ["detail"]}
ERRORS: dict[int, Schema] = {400: ONE_LINE, 404: REFUSED, 413: REFUSED, 422: DETAILS, 500: {"type": "string"}}
CREATE_PARAMS_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "input": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": OBJECT}]},
        "tools": {"type": ["array", "null"], "items": OBJECT},
        "temperature": {"type": ["number", "null"]},
        "top_p": {"type": ["number", "null"]},
        "max_output_tokens": {"type": ["integer", "null"]},
        "metadata": {"type": ["object", "null"]},
    },
    "required": ["input"],
}
ROW: dict[str, JSON] = {
    "type": "object",
    "properties": {CREATE_PARAMS: CREATE_PARAMS_SCHEMA, VERIFIER_METADATA: {"type": ["object", "null"]}},
    "required": [CREATE_PARAMS],
}
RESPONSE: dict[str, JSON] = {
    "type": "object",
    "properties": {"output": {"type": "array", "items": OBJECT}},
    "required": ["output"],
}
ANSWERED_ROW: dict[str, JSON] = {
    **ROW,
    "properties": {**ROW["properties"], "response": RESPONSE},
    "required": [CREATE_PARAMS, "response"],
}
VERIFIED_ROWS: dict[str, JSON] = {
    "type": "object",
    "properties": {"verify_responses": {"type": "array", "items": OBJECT}},
    "required": ["verify_responses"],
}
METRICS: dict[str, JSON] = {"type": "object", "required": ["group_level_metrics", "agent_metrics", "key_metrics"]}
HEALTH: dict[str, JSON] = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}


def make_post(path: str, summary: str, handler: Handler, body: Schema, reply: Schema = OBJECT) -> Operation:
    """Return the route of a request with a body; its name is its path, as in Gym's own descriptions."""
    name = path.strip("/") if "{" not in path else ""
    return Operation("POST", path, summary, handler, reply, ERRORS, body, name=name)


def make_gym_app(server: str, say: Callable[[str], None], operations: Sequence[Operation]) -> web.Application:
    """Return an application with these routes and those of every server: alive, its description, statistics over rows.

    It sets the session cookie on every reply, errors included; `say` gets each failure.
    """
    cookies = SessionCookies(server)

    @web.middleware
    async def with_cookie(request: web.Request, handler: Handler) -> web.StreamResponse:
        CURRENT_SESSION.set(cookies.read(request) or make_session_id())
        response = await _handle_request(request, handler, say)
        cookies.write(response, CURRENT_SESSION.get())
        return response

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[with_cookie])
    add_operations(app, describe_operations(server, [*COMMON_OPERATIONS, *operations]))
    return app


async def _health(_: web.Request) -> web.Response:
    return json_response({"status": "ok"})


async def _aggregate(request: web.Request) -> web.Response:
    return json_response(aggregate_metrics(read_verified_rows(await read_json_object(request))))


COMMON_OPERATIONS = (
    Operation("GET", "/", "alive?", _health, HEALTH, name="root"),
    Operation("GET", "/health", "alive?", _health, HEALTH, name="health"),
    make_post("/aggregate_metrics", "statistics over verified rows", _aggregate, VERIFIED_ROWS, METRICS),
)


def read_verified_rows(body: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """Return the rows of a request for statistics."""
    rows = body.get("verify_responses")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError("verify_responses is not a list of objects")
    return rows


async def _handle_request(request: web.Request, handler: Handler, say: Callable[[str], None]) -> web.StreamResponse:
    """Return the handler's reply, or its error in Gym's form."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return copy_allow(error, json_response({"detail": error.reason}, error.status))
    except NoSession as error:
        return json_response(str(error), 400)
    except UsageError as error:
        return json_response(
            {"detail": [{"type": "value_error", "loc": ["body"], "msg": str(error), "input": None}]}, 422
        )
    except RolloutFailed as error:
        say(f"{request.path}: {error}")
        return json_response(str(error), 500)
    except RollbookError as error:
        say(f"{request.path}: {error}")
        return json_response(repr(error), 500)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - one request may fail; the server and its cookie continue
        say(f"{request.path}: {error!r}")
        return json_response(repr(error), 500)


IMPLEMENTATION = "rollbook"


class HeadRoutes:
    """Describe one instance: the server that has these routes, at the address the client used."""

    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind
        self._started_at = time.time()

    def list_operations(self) -> list[Operation]:
        """Return the routes."""
        return [
            Operation("GET", "/global_config_dict_yaml", "the instances as YAML", self._config, {"type": "string"}),
            Operation("GET", "/server_instances", "the instances", self._instances, {"type": "array", "items": OBJECT}),
        ]

    async def _config(self, request: web.Request) -> web.Response:
        """Return the parts of Gym's merged configuration that exist here."""
        host, port = _address_seen_by_client(request)
        settings: dict[str, JSON] = {"entrypoint": "app.py", "host": host, "port": port}
        if self._kind == RESOURCES:
            settings["domain"] = "other"
        config = {
            self._name: {self._kind: {IMPLEMENTATION: settings}},
            "head_server": {"host": host, "port": port},
            "dry_run": False,
        }
        return json_response(yaml.safe_dump(config, sort_keys=False))

    async def _instances(self, request: web.Request) -> web.Response:
        host, port = _address_seen_by_client(request)
        instance: dict[str, JSON] = {
            "process_name": self._name,
            "server_type": self._kind,
            "name": IMPLEMENTATION,
            "config_path": self._name,
            "dir_path": None,
            "entrypoint": "app.py",
            "host": host,
            "port": port,
            "url": f"http://{host}:{port}",
            "pid": os.getpid(),
            "start_time": self._started_at,
            "status": "success",
            "uptime_seconds": time.time() - self._started_at,
        }
        return json_response([instance])


def _address_seen_by_client(request: web.Request) -> tuple[str, int]:
    """Return the address this client used: the one we listen on may mean nothing to it."""
    return str(request.url.host), int(request.url.port or 80)
