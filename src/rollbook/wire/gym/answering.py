"""What Gym's servers and clients expect of HTTP: a JSON string for an error, a list of details for a bad request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import msgspec
from aiohttp import web

from rollbook.core.json import JSON, decode, encode
from rollbook.errors import RollbookError, RolloutFailed, UsageError
from rollbook.wire.gym.cookie import Cookies, new_session
from rollbook.wire.gym.leases import NoSession

BODY_LIMIT = 256 << 20
SESSION: ContextVar[str] = ContextVar("session")
"""The session that the request under way is about; what it is in the end, the answer's cookie tells."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def said(value: JSON, status: int = 200) -> web.Response:
    """An answer in JSON."""
    return web.Response(status=status, body=encode(value), content_type="application/json")


async def read_object(request: web.Request) -> dict[str, JSON]:
    """The body of a request; UsageError if it is no JSON object."""
    body = await request.read()
    try:
        value = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("the body is no JSON object")
    return value


def gym_app(cookies: Cookies, say: Callable[[str], None]) -> web.Application:
    """An application whose every answer, errors included, carries the session cookie; `say` is told of failures."""

    @web.middleware
    async def with_cookie(request: web.Request, handler: Handler) -> web.StreamResponse:
        SESSION.set(cookies.read(request) or new_session())
        response = await _answered(request, handler, say)
        cookies.write(response, SESSION.get())
        return response

    return web.Application(client_max_size=BODY_LIMIT, middlewares=[with_cookie])


async def _answered(request: web.Request, handler: Handler, say: Callable[[str], None]) -> web.StreamResponse:
    """The handler's answer, or what went wrong in the form that Gym gives it."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return said({"detail": error.reason}, error.status)
    except NoSession as error:
        return said(str(error), 400)
    except UsageError as error:
        return said({"detail": [{"type": "value_error", "loc": ["body"], "msg": str(error), "input": None}]}, 422)
    except RolloutFailed as error:
        say(f"{request.path}: {error}")
        return said(str(error), 500)
    except RollbookError as error:
        say(f"{request.path}: {error}")
        return said(repr(error), 500)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - one request may fail; the server and its cookie go on
        say(f"{request.path}: {error!r}")
        return said(repr(error), 500)
