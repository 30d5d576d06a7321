"""The viewer's server: on loopback, behind a token, for as long as somebody looks."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from rollbook.collect.loop import on_fast_loop
from rollbook.errors import UsageError
from rollbook.view.api import API
from rollbook.view.guard import HEADERS, Guard, Handler
from rollbook.view.opened import Shelf

WEB = Path(__file__).with_name("web")
HOST = "127.0.0.1"
SHUTDOWN_S = 0.5
LONGEST = 1 << 16
"""What an address may have at most: ids of tasks and filters are in it, three bytes for each of theirs."""

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def make_app(shelf: Shelf, token: str) -> web.Application:
    """The application: the page, its assets and what they ask for."""
    guard = Guard(token)
    app = web.Application(middlewares=[guard.middleware()])
    api = API(shelf)
    for place in ("/", guard.place):  # for who sends the token itself, and for who has the cookie
        api.add_to(app, place)
        for path in sorted(WEB.rglob("*")):
            if path.suffix in KINDS:
                app.router.add_get(f"{place}{path.relative_to(WEB).as_posix()}", _asset(path))
        app.router.add_get(place, _asset(WEB / "index.html"))
    return app


def _asset(path: Path) -> Handler:
    """A file of ours: what is served is decided when the server starts, never by a request."""
    body = path.read_bytes()

    async def serve_asset(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=KINDS[path.suffix], charset="utf-8", headers=HEADERS)

    return serve_asset


def view(shelf: Shelf, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address, which has the token in it."""
    on_fast_loop(lambda: _serve(shelf, port, ready))


async def _serve(shelf: Shelf, port: int, ready: Callable[[str], None]) -> None:
    token = secrets.token_urlsafe(24)
    app = make_app(shelf, token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, max_line_size=LONGEST)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}; --port 0 takes a free one") from None
        told = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        ready(f"http://{HOST}:{runner.addresses[0][1]}/?token={token}")
        warming = asyncio.create_task(asyncio.to_thread(shelf.warm)) if shelf.folder.single else None
        await told.wait()
        if warming:
            await warming
    finally:
        await runner.cleanup()
