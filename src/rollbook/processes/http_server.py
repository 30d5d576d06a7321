"""Serves an aiohttp application until SIGINT or SIGTERM; JSON requests and replies."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from rollbook.core import JSON, JSON_ERRORS, decode, encode
from rollbook.errors import UsageError

SHUTDOWN_S = 2.0


async def serve_app(
    app: web.Application, host: str, port: int, on_ready: Callable[[str], None], *, cancel_on_disconnect: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` is called with the address once requests are accepted.

    With `cancel_on_disconnect`, a client that closes the connection cancels its request.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, handler_cancellation=cancel_on_disconnect)
    await serve_runner(runner, host, port, on_ready, f"--host {host} --port {port}")


async def serve_runner(
    runner: web.AppRunner, host: str, port: int, on_ready: Callable[[str], None], options: str
) -> None:
    """Serve with a runner that has settings of its own; `options` are what was typed, for the error."""
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UsageError(f"{options}: {error.strerror}; --port 0 takes a free one") from None
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}")
        await stopping.wait()
    finally:
        await runner.cleanup()


async def read_json_object(
    request: web.Request, timeout_s: float | None = None, max_values: int | None = None
) -> dict[str, JSON]:
    """Return the body of a request, by a deadline; UsageError if it is not a JSON object, or of too many values.

    Commas and brackets in texts count too: a parser would have to tell them apart.
    """
    async with asyncio.timeout(timeout_s):
        body = await request.read()
    if max_values is not None and sum(map(body.count, (b",", b"[", b"{"))) > max_values:
        raise UsageError(f"the body has more than {max_values} commas and opening brackets")
    try:
        value = decode(body)
    except JSON_ERRORS as error:
        raise UsageError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("the body is not a JSON object")
    return value


def json_response(value: JSON, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a reply in JSON."""
    return web.Response(status=status, body=encode(value), content_type="application/json", headers=headers)


def make_refusal_middleware(make_refusal: Callable[[web.Request, int, str], web.Response]) -> Middleware:
    """Return middleware that answers what aiohttp itself refuses (404, 405, 413) in the form of a server's errors."""

    @web.middleware
    async def refuse(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return copy_allow(error, make_refusal(request, error.status, error.reason))

    return refuse


def copy_allow(error: web.HTTPException, response: web.Response) -> web.Response:
    """Return a response with the methods that a 405 must list."""
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def join_lines(text: str) -> str:
    """Return a message as one line: an error may quote text of a request.

    >>> join_lines("no task is called a\\nb")
    'no task is called a b'
    """
    return " ".join(text.splitlines())
