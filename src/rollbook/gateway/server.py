"""The gateway over HTTP: three protocols under a rollout name that cannot be guessed.

    POST /rollout/NAME/v1/chat/completions    OpenAI's chat completions
    POST /rollout/NAME/v1/responses           OpenAI's responses
    POST /rollout/NAME/v1/messages            Anthropic's messages
    GET  /rollout/NAME/v1/models

A stream begins when the answer is complete, and so checked and recorded: an agent is never shown a part of what the
record does not hold. While it waits, a stream is kept alive. A client that closes the connection ends its call.

`LocalGateway` serves one program of a run: on loopback, under one name, for as long as its rollout lasts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web, web_protocol

from rollbook.core import FAILURE_KINDS, JSON, Rollout
from rollbook.errors import UsageError
from rollbook.gateway.anthropic import ANTHROPIC
from rollbook.gateway.chat_completions import CHAT
from rollbook.gateway.protocol import (
    ErrorReply,
    ModelRequest,
    RolloutEnded,
    WireProtocol,
    encode_event,
    make_error_reply,
)
from rollbook.gateway.recorder import Recorder
from rollbook.gateway.responses import RESPONSES
from rollbook.models import AskModel
from rollbook.processes import (
    EVENTS_TYPE,
    JSON_TYPE,
    Operation,
    add_operations,
    json_response,
    make_refusal_middleware,
    read_json_object,
)

BODY_LIMIT = 32 << 20
BODY_TIMEOUT_S = 60.0
MAX_JSON_VALUES = 2_000_000
"""Objects, lists and values in a request: 3 bytes of text can become an object of 64 bytes in memory."""

KEEP_ALIVE_S = 10.0
ROLLOUT_PATH = "/rollout/{rollout}"
PROTOCOLS = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES, "/v1/messages": ANTHROPIC}

CALL_ERRORS = sorted({kind.http_status for kind in FAILURE_KINDS.values()} | {400, 404, 408, 413, 429, 500, 503})
MODEL: dict[str, JSON] = {"type": "object", "required": ["id", "object", "created", "owned_by", "type", "display_name"]}
MODEL_LIST: dict[str, JSON] = {
    "type": "object",
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}},
    "required": ["object", "data", "has_more"],
}

FindRecorder = Callable[[str], Recorder]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_rollout_name() -> str:
    """Return a random name for a rollout: it is the secret that gives access."""
    return secrets.token_urlsafe(18)


class GatewayServer:
    """Answers for the rollouts that `find` returns (KeyError if unknown); `model` is the name that is listed."""

    def __init__(self, find: FindRecorder, model: str, say: Callable[[str], None] = lambda _: None) -> None:
        self._find, self._model, self._say = find, model, say

    def make_app(self, operations: Sequence[Operation] = ()) -> web.Application:
        """Return the application for aiohttp, which should cancel handlers when a client disconnects.

        It has the routes of agents, or other `operations`.
        """
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[make_refusal_middleware(make_refusal)])
        add_operations(app, operations or self.list_operations())
        return app

    def list_operations(self) -> list[Operation]:
        """Return the routes of agents. The name in the path is all that they need."""
        calls = [
            Operation(
                "POST",
                ROLLOUT_PATH + path,
                protocol.title,
                self._make_handler(protocol),
                protocol.answer_schema,
                dict.fromkeys(CALL_ERRORS, protocol.error_schema),
                protocol.request_schema,
                media=(JSON_TYPE, EVENTS_TYPE),
                open=True,
            )
            for path, protocol in PROTOCOLS.items()
        ]
        errors = {404: CHAT.error_schema}
        models = ROLLOUT_PATH + "/v1/models"
        return [
            *calls,
            Operation("GET", models, "the model", self._list_models, MODEL_LIST, errors, open=True),
            Operation("GET", models + "/{name:.+}", "the model by name", self._list_models, MODEL, errors, open=True),
        ]

    def _find_recorder(self, request: web.Request) -> Recorder:
        try:
            return self._find(request.match_info["rollout"])
        except KeyError:
            raise RolloutEnded from None

    def _make_handler(self, protocol: WireProtocol) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await self._answer(request, protocol)
            except ConnectionError:
                raise  # the client has disconnected
            except Exception as error:  # noqa: BLE001 - reported to the agent, and stored by the recorder
                return self._make_error_response(protocol, error)

        return answer

    async def _answer(self, request: web.Request, protocol: WireProtocol) -> web.StreamResponse:
        recorder = self._find_recorder(request)
        async with recorder.bodies.hold(find_body_size(request)) as shrink:
            model_request = protocol.read(await read_json_object(request, BODY_TIMEOUT_S, MAX_JSON_VALUES))
            shrink(len(await request.read()))
            if model_request.stream:
                return await self._stream(request, protocol, recorder, model_request)
            return json_response(protocol.answer(model_request, await recorder.complete(model_request)))

    async def _stream(
        self, request: web.Request, protocol: WireProtocol, recorder: Recorder, model_request: ModelRequest
    ) -> web.StreamResponse:
        """Stream the answer as events. Until the first keep-alive is sent, an error can still have its own status."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        call = asyncio.create_task(recorder.complete(model_request), name="gateway call")
        try:
            while not (await asyncio.wait({call}, timeout=KEEP_ALIVE_S))[0]:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(protocol.keep_alive)
            data = b"".join(protocol.stream(model_request, call.result()))
        except Exception as error:
            if not response.prepared:
                raise
            data = encode_event(protocol.error(self._make_error_reply(error)), protocol.error_event)
        finally:
            call.cancel()
        if not response.prepared:
            await response.prepare(request)
        await response.write(data)
        await response.write_eof()
        return response

    def _make_error_response(self, protocol: WireProtocol, error: Exception) -> web.Response:
        reply = self._make_error_reply(error)
        return json_response(protocol.error(reply), reply.status, reply.headers)

    def _make_error_reply(self, error: Exception) -> ErrorReply:
        reply = make_error_reply(error, BODY_LIMIT)
        if reply.status >= 500:
            self._say(f"{reply.kind}: {reply.message}")
        return reply

    async def _list_models(self, request: web.Request) -> web.Response:
        try:
            self._find_recorder(request)
        except RolloutEnded as error:
            return self._make_error_response(CHAT, error)
        row = {"id": self._model, "object": "model", "created": 0, "owned_by": "rollbook"}
        anthropic_fields = {"type": "model", "display_name": self._model, "created_at": "1970-01-01T00:00:00Z"}
        name = request.match_info.get("name")
        if name is None:
            return json_response({"object": "list", "data": [{**row, **anthropic_fields}], "has_more": False})
        if name != self._model:
            reply = ErrorReply(404, "not_found", f"there is no model {name} here, only {self._model}")
            return json_response(CHAT.error(reply), 404)
        return json_response({**row, **anthropic_fields})


def find_body_size(request: web.Request) -> int:
    """Return the size of a body that has not come yet: without a length, the largest that is allowed."""
    if encoding := request.headers.get("Content-Encoding"):
        raise UsageError(f"Content-Encoding is {encoding[:80]}: send the body without compression")
    size = BODY_LIMIT if request.content_length is None else request.content_length
    if size > BODY_LIMIT:
        raise web.HTTPRequestEntityTooLarge(BODY_LIMIT, size)
    return size


def make_refusal(request: web.Request, status: int, reason: str) -> web.Response:
    """Return the error for a request that has no route, in the form that its client can read."""
    protocol = ANTHROPIC if "/v1/messages" in request.path else CHAT
    if status not in (404, 405):
        return json_response(protocol.error(ErrorReply(status, "invalid_request", reason)), status)
    _, rollout, rest = (*request.path.split("/", 3)[1:], "", "")[:3]
    known = ", ".join([*(f"POST {path}" for path in PROTOCOLS), "GET /v1/models"])
    served = f"there are {known}" if rollout else "open a rollout with POST /rollout, ask under its URL"
    message = f"{request.method} {f'/{rest}' if rollout else request.path} is not served here; {served}"
    return json_response(protocol.error(ErrorReply(status, "not_found", message)), status)


HOST = "127.0.0.1"
MODEL_NAME = "rollbook"
"""The listed model name; any other name works as well."""

SHUTDOWN_TIMEOUT_S = 1.0
IDLE_CONNECTION_S = 75.0
"""How long a connection stays open after an answer: a program may have only so many."""

MAX_HEADERS, MAX_HEADER_BYTES = 64, 4096
"""Headers of a request, and the length of each."""

web_protocol.MAX_MSG_QUEUE_SIZE = 2
"""Requests that aiohttp reads from a connection while one is answered; with large headers, its 32 take 60 MB."""

NO_LOG = logging.getLogger("rollbook.gateway.requests")
"""For aiohttp, which would print a traceback for each malformed request: a program could fill the log of the worker."""
NO_LOG.disabled = True


class LocalGateway:
    """Serves each rollout on a port of its own, so that rollouts share nothing."""

    @asynccontextmanager
    async def open(self, rollout: Rollout, ask: AskModel) -> AsyncIterator[Recorder]:
        """See `agents.program.ModelGateway`."""
        recorder, name = Recorder(rollout, ask), make_rollout_name()
        app = GatewayServer({name: recorder}.__getitem__, MODEL_NAME).make_app()
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=NO_LOG,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            keepalive_timeout=IDLE_CONNECTION_S,
            max_headers=MAX_HEADERS,
            max_field_size=MAX_HEADER_BYTES,
            handler_cancellation=True,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, 0)
            await site.start()
            recorder.url = f"http://{HOST}:{runner.addresses[0][1]}/rollout/{name}"
            yield recorder
        finally:
            recorder.close()
            await runner.cleanup()
