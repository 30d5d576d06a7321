"""The gateway over HTTP: three protocols under the name of a rollout that nobody can guess.

    POST /rollout/NAME/v1/chat/completions    OpenAI's chat completions
    POST /rollout/NAME/v1/responses           OpenAI's responses
    POST /rollout/NAME/v1/messages            Anthropic's messages
    GET  /rollout/NAME/v1/models

A stream begins when the answer is whole, and so checked and recorded: an agent is never shown a part of what the record
does not hold. While it waits, a stream is kept alive. Whoever hangs up ends the call.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from rollbook.core.json import JSON, decode, encode
from rollbook.errors import UsageError
from rollbook.wire.gateway.anthropic import ANTHROPIC
from rollbook.wire.gateway.asked import Asked, Dialect
from rollbook.wire.gateway.chat import CHAT
from rollbook.wire.gateway.events import event
from rollbook.wire.gateway.recorder import Recorder
from rollbook.wire.gateway.responses import RESPONSES
from rollbook.wire.gateway.trouble import Ended, Trouble, trouble_of

BODY_LIMIT = 32 << 20
BODY_S = 60.0
KEEP_ALIVE_S = 10.0
BASE = "/rollout/{rollout}"
DIALECTS = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES, "/v1/messages": ANTHROPIC}

Find = Callable[[str], Recorder]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def new_name() -> str:
    """A name for a rollout: whoever does not know it cannot speak for it."""
    return secrets.token_urlsafe(18)


class Gateway:
    """Answers for the rollouts that `find` knows (KeyError: not this one); `model` is the name that is listed."""

    def __init__(self, find: Find, model: str, say: Callable[[str], None] = lambda _: None) -> None:
        self._find, self._model, self._say = find, model, say

    def app(self) -> web.Application:
        """The application, for aiohttp to serve; it wants handlers to be cancelled when a client hangs up."""
        app = web.Application(client_max_size=BODY_LIMIT)
        self.add_to(app)
        return app

    def add_to(self, app: web.Application) -> None:
        """The same beside what an application has already."""
        for path, dialect in DIALECTS.items():
            app.router.add_post(BASE + path, self._answering(dialect))
        app.router.add_get(BASE + "/v1/models", self._models)
        app.router.add_get(BASE + "/v1/models/{name:.+}", self._models)
        app.router.add_route("*", BASE + "/{rest:.*}", self._elsewhere)

    def _recorder(self, request: web.Request) -> Recorder:
        try:
            return self._find(request.match_info["rollout"])
        except KeyError:
            raise Ended from None

    def _answering(self, dialect: Dialect) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                recorder = self._recorder(request)
                asked = dialect.read(await read_object(request))
                if asked.stream:
                    return await self._stream(request, dialect, recorder, asked)
                return said(200, dialect.answer(asked, await recorder.complete(asked)))
            except ConnectionError:
                raise  # whoever asked is gone
            except Exception as error:  # noqa: BLE001 - told to the agent, and kept by the recorder
                return self._complaint(dialect, error)

        return answer

    async def _stream(
        self, request: web.Request, dialect: Dialect, recorder: Recorder, asked: Asked
    ) -> web.StreamResponse:
        """The answer as events. Until the first sign of life is due, an error can still have its own status."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        call = asyncio.create_task(recorder.complete(asked), name="gateway call")
        try:
            while not (await asyncio.wait({call}, timeout=KEEP_ALIVE_S))[0]:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(dialect.waiting)
            data = b"".join(dialect.stream(asked, call.result()))
        except Exception as error:
            if not response.prepared:
                raise
            data = event_of(dialect, self._trouble(error))
        finally:
            call.cancel()
        if not response.prepared:
            await response.prepare(request)
        await response.write(data)
        await response.write_eof()
        return response

    def _complaint(self, dialect: Dialect, error: Exception) -> web.Response:
        trouble = self._trouble(error)
        return said(trouble.status, dialect.error(trouble), trouble.headers)

    def _trouble(self, error: Exception) -> Trouble:
        trouble = trouble_of(error, BODY_LIMIT)
        if trouble.status >= 500:
            self._say(f"{trouble.kind}: {trouble.words}")
        return trouble

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._recorder(request)
        except Ended as error:
            return self._complaint(CHAT, error)
        row = {"id": self._model, "object": "model", "created": 0, "owned_by": "rollbook"}
        theirs = {"type": "model", "display_name": self._model, "created_at": "1970-01-01T00:00:00Z"}
        name = request.match_info.get("name")
        if name is None:
            return said(200, {"object": "list", "data": [{**row, **theirs}], "has_more": False})
        if name != self._model:
            trouble = Trouble(404, "not_found", f"there is no model {name} here, only {self._model}")
            return said(404, CHAT.error(trouble))
        return said(200, {**row, **theirs})

    async def _elsewhere(self, request: web.Request) -> web.Response:
        dialect = ANTHROPIC if request.match_info["rest"].startswith("v1/messages") else CHAT
        known = ", ".join([*(f"POST {path}" for path in DIALECTS), "GET /v1/models"])
        words = f"{request.method} /{request.match_info['rest']} is not served here; there are {known}"
        return said(404, dialect.error(Trouble(404, "not_found", words)))


def event_of(dialect: Dialect, trouble: Trouble) -> bytes:
    """An error in a stream that has begun already."""
    return event(dialect.error(trouble), dialect.error_event)


async def read_object(request: web.Request) -> dict[str, JSON]:
    """The body of a request, in time; UsageError if it is no JSON object."""
    async with asyncio.timeout(BODY_S):
        body = await request.read()
    try:
        value = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("the body is no JSON object")
    return value


def said(status: int, value: JSON, headers: dict[str, str] | None = None) -> web.Response:
    """An answer in JSON."""
    return web.Response(status=status, body=encode(value), content_type="application/json", headers=headers)
