"""The viewer's server: on loopback, behind a token, for as long as somebody looks; its access checks and JSON API.

    GET /api/runs                                      every book of the folder
    GET /api/run?run=                                  the numbers and charts of one
    GET /api/tasks?run=&keep=&sort=&desc=&offset=&limit=   a piece of its table
    GET /api/task?run=&task=&offset=                   the samples of a task
    GET /api/rollout?run=&task=&sample=&attempt=       one rollout, or a failed attempt at it
    GET /api/tokens?run=&task=&sample=&attempt=&sequence=&offset=   its exact tokens
    GET /api/compare?a=&b=&common=&offset=&limit=      two runs
    GET /api/search?run=&text=                         a stream of progress and hits
    GET /api/live?run=                                 a stream that says when there is something new

A request that cannot be answered gets `{"error": one line}`, and no path ever comes from a request. Only who has the
token may read, from this machine, and no other web page on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from rollbook.core import JSON, encode
from rollbook.errors import RollbookError, UsageError
from rollbook.processes import run_event_loop
from rollbook.viewer.export import WEB_FOLDER
from rollbook.viewer.rollout_pages import make_rollout_page, make_token_page
from rollbook.viewer.run_cache import RunCache
from rollbook.viewer.run_pages import RunList, make_compare_page, make_run_page
from rollbook.viewer.search import TextSearch
from rollbook.viewer.snapshot import replace_surrogates
from rollbook.viewer.task_pages import make_task_page, make_task_rows

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ALLOWED_SITES = ("same-origin", "none")
COOKIE = "rollbook"
ENTRY_PAGE = '<!doctype html><title>Rollbook</title><script src="{place}js/door.js"></script>'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AccessGuard:
    """Checks every request, and gives the cookie to the page that was opened with the token in its address."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.prefix = f"/{hashlib.sha256(_encode(token)).hexdigest()[:24]}/"
        """Where the page is. Cookies know no ports: one for `/` would be sent to every server on this machine."""

    def middleware(self) -> Middleware:
        """The guard as aiohttp takes it."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            words = self._find_refusal(request)
            if words:
                return make_refusal(*words)
            came_by_link = request.path == "/" and "token" in request.query
            return self._set_cookie(request) if came_by_link else await _call_handler(request, handler)

        return guarded

    def _find_refusal(self, request: web.Request) -> tuple[int, str] | None:
        if not is_own_host(request.headers.get("Host", ""), _server_port(request)):
            return 403, "this address is not ours"
        if not _is_same_origin(request):
            return 403, "another page may not read this one"
        if request.method not in ("GET", "HEAD"):
            return 405, "there is nothing to write here"
        if not self._has_token(request):
            return 401, "open the address that `rollbook view` has printed: it has the token in it"
        return None

    def _has_token(self, request: web.Request) -> bool:
        given = [request.query.get("token", ""), request.cookies.get(COOKIE, "")]
        given.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        return any(hmac.compare_digest(_encode(each), _encode(self._token)) for each in given)

    def _set_cookie(self, request: web.Request) -> web.StreamResponse:
        """Whoever came with the token gets the cookie, and goes on to where the page is."""
        response = web.Response(text=ENTRY_PAGE.format(place=self.prefix), content_type="text/html", headers=HEADERS)
        response.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict", path=self.prefix)
        return response


def _server_port(request: web.Request) -> int:
    name = request.transport.get_extra_info("sockname") if request.transport else None
    return int(name[1]) if name else 0


def is_own_host(host: str, port: int) -> bool:
    """Whether a Host header names this machine and this port, which is left out where it is 80."""
    return host in [f"{name}:{port}" for name in LOOPBACK] or (port == 80 and host in LOOPBACK)


def _is_same_origin(request: web.Request) -> bool:
    """A page of another origin says so; one that was opened by hand says nothing, or that it has no site."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "none")
    opened = request.headers.get("Sec-Fetch-Mode") == "navigate"  # a link in a web terminal is another site's
    return origin in (None, f"http://{request.headers.get('Host', '')}") and (site in ALLOWED_SITES or opened)


async def _call_handler(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return make_refusal(error.status, error.reason)


def make_refusal(status: int, message: str) -> web.Response:
    """A refusal in one line."""
    return web.json_response({"error": message}, status=status, headers=HEADERS)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


PAGE_ROWS = 50
MAX_ROWS = 500
MAX_INTEGER = 1 << 40
POLL_S = 1.0
LIST_POLL_FACTOR = 3
"""The list of runs is looked at more rarely than one run: it is longer."""

MAX_STREAMS = 32
T = TypeVar("T")


class ViewerApi:
    """Answers from the books of one shelf."""

    def __init__(self, cache: RunCache, every_s: float = POLL_S) -> None:
        self._cache, self._runs, self._every_s = cache, RunList(cache), every_s
        self._streams = 0

    def add_routes(self, app: web.Application, prefix: str) -> None:
        """Add the routes below a place."""
        answers: dict[str, Callable[[RequestQuery], JSON]] = {
            "runs": self._list_runs,
            "run": lambda q: make_run_page(q.text("run"), self._cache.take_snapshot(q.text("run"))),
            "tasks": self._tasks,
            "task": self._task,
            "rollout": self._rollout,
            "tokens": self._tokens,
            "compare": self._compare,
        }
        for name, answer in answers.items():
            app.router.add_get(f"{prefix}api/{name}", make_json_handler(answer))
        app.router.add_get(f"{prefix}api/search", self._make_stream_handler(self._search), allow_head=False)
        app.router.add_get(f"{prefix}api/live", self._make_stream_handler(self._live), allow_head=False)

    def _list_runs(self, query: RequestQuery) -> JSON:
        folder = self._cache.folder
        return {"folder": folder.name, "single": folder.single, "runs": self._runs.rows()}

    def _tasks(self, query: RequestQuery) -> JSON:
        keep, sort = query.text("keep", ""), query.text("sort", "")
        offset, limit = query.integer("offset", 0), query.integer("limit", PAGE_ROWS, MAX_ROWS)
        return make_task_rows(
            self._cache.take_snapshot(query.text("run")), keep, sort, query.flag("desc"), offset, limit
        )

    def _task(self, query: RequestQuery) -> JSON:
        snapshot = self._cache.take_snapshot(query.text("run"))
        return make_task_page(snapshot, snapshot.row(query.text("task")), query.integer("offset", 0))

    def _rollout(self, query: RequestQuery) -> JSON:
        snapshot = self._cache.take_snapshot(query.text("run"))
        row, sample = snapshot.row(query.text("task")), query.integer("sample")
        return make_rollout_page(snapshot, row, sample, query.optional_integer("attempt"))

    def _tokens(self, query: RequestQuery) -> JSON:
        snapshot = self._cache.take_snapshot(query.text("run"))
        row, sample = snapshot.row(query.text("task")), query.integer("sample")
        sequence, offset = query.integer("sequence", 0), query.integer("offset", 0)
        return make_token_page(snapshot, row, sample, query.optional_integer("attempt"), sequence, offset)

    def _compare(self, query: RequestQuery) -> JSON:
        a, b = self._cache.take_snapshot(query.text("a")), self._cache.take_snapshot(query.text("b"))
        offset, limit = query.integer("offset", 0), query.integer("limit", PAGE_ROWS, MAX_ROWS)
        return make_compare_page(a, b, query.flag("common"), offset, limit)

    def _make_stream_handler(self, stream: Callable[[RequestQuery, web.StreamResponse], Awaitable[None]]) -> Handler:
        """A handler of server-sent events; there is room for so many at once."""

        async def answer(request: web.Request) -> web.StreamResponse:
            if self._streams >= MAX_STREAMS:
                return make_refusal(429, "too many pages are open: close some")
            response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
            self._streams += 1
            try:
                await response.prepare(request)
                await stream(RequestQuery(request), response)
            except ConnectionError:
                pass  # the page was closed
            except (RollbookError, OSError, msgspec.DecodeError, UnicodeError) as error:
                await send_event(response, {"error": replace_surrogates(str(error))})
            finally:
                self._streams -= 1
            return response

        return answer

    async def _search(self, query: RequestQuery, response: web.StreamResponse) -> None:
        search = await asyncio.to_thread(
            lambda: TextSearch(self._cache.take_snapshot(query.text("run")), query.text("text"))
        )
        steps = search.steps()
        while (step := await asyncio.to_thread(_next_step, steps)) is not None:
            await send_event(response, step)
        await send_event(response, {"end": True})

    async def _live(self, query: RequestQuery, response: web.StreamResponse) -> None:
        """Say when something has changed; the page then asks for what it shows."""
        single = bool(query.text("run", ""))
        look, every_s = (
            (self._read_version, self._every_s) if single else (self._read_list, LIST_POLL_FACTOR * self._every_s)
        )
        held: JSON = None
        while True:
            now = await asyncio.to_thread(look, query)
            await (send_event(response, now) if now != held else response.write(b": still here\n\n"))
            held = now
            await asyncio.sleep(every_s)

    def _read_version(self, query: RequestQuery) -> JSON:
        """What the page would be given now: whoever asks after this event gets no older run."""
        snapshot = self._cache.take_snapshot(query.text("run"))
        return {"version": snapshot.version, "state": snapshot.state}

    def _read_list(self, query: RequestQuery) -> JSON:
        return {"runs": self._runs.rows()}


class RequestQuery:
    """The parameters of a request, each with its bounds."""

    def __init__(self, request: web.Request) -> None:
        self._parameters = request.query

    def text(self, name: str, default: str | None = None) -> str:
        """A parameter as it is; one without a default must be given."""
        value = self._parameters.get(name, default)
        if value is None:
            raise UsageError(f"the request does not say which {name}")
        return value

    def integer(self, name: str, default: int | None = None, maximum: int = MAX_INTEGER) -> int:
        """A number from 0 up."""
        text = self.text(name, None if default is None else str(default))
        if not (text.isascii() and text.isdigit()) or len(text) > 15 or int(text) > maximum:
            raise UsageError(f"{name}={text[:40]}: write a number from 0 to {maximum}")
        return int(text)

    def optional_integer(self, name: str) -> int | None:
        """A number that need not be given."""
        return self.integer(name) if self._parameters.get(name) else None

    def flag(self, name: str) -> bool:
        """Whether something is wanted."""
        return self._parameters.get(name, "") in ("1", "true")


def make_json_handler(answer: Callable[[RequestQuery], JSON]) -> Handler:
    """A handler that works in a thread of its own and says in one line what cannot be answered."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = await asyncio.to_thread(lambda: encode(answer(RequestQuery(request))))
        except UsageError as error:
            return make_refusal(400, replace_surrogates(str(error)))
        except (RollbookError, OSError, msgspec.DecodeError, UnicodeError) as error:
            return make_refusal(409, replace_surrogates(str(error)))
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    return handle


async def send_event(response: web.StreamResponse, value: JSON) -> None:
    """One event."""
    await response.write(b"data: " + encode(value) + b"\n\n")


def _next_step(steps: Iterator[T]) -> T | None:
    return next(steps, None)


HOST = "127.0.0.1"
SHUTDOWN_TIMEOUT_S = 0.5
MAX_URL_BYTES = 1 << 16
"""What an address may have at most: ids of tasks and filters are in it, three bytes for each of theirs."""

CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def make_app(cache: RunCache, token: str) -> web.Application:
    """The application: the page, its assets and what they ask for."""
    guard = AccessGuard(token)
    app = web.Application(middlewares=[guard.middleware()])
    api = ViewerApi(cache)
    for place in ("/", guard.prefix):  # for who sends the token itself, and for who has the cookie
        api.add_routes(app, place)
        for path in sorted(WEB_FOLDER.rglob("*")):
            if path.suffix in CONTENT_TYPES:
                app.router.add_get(f"{place}{path.relative_to(WEB_FOLDER).as_posix()}", _make_asset_handler(path))
        app.router.add_get(place, _make_asset_handler(WEB_FOLDER / "index.html"))
    return app


def _make_asset_handler(path: Path) -> Handler:
    """A file of ours: what is served is decided when the server starts, never by a request."""
    body = path.read_bytes()

    async def serve_asset(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=CONTENT_TYPES[path.suffix], charset="utf-8", headers=HEADERS)

    return serve_asset


def view(cache: RunCache, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address, which has the token in it."""
    run_event_loop(lambda: _serve_until_signal(cache, port, ready))


async def _serve_until_signal(cache: RunCache, port: int, ready: Callable[[str], None]) -> None:
    token = secrets.token_urlsafe(24)
    app = make_app(cache, token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S, max_line_size=MAX_URL_BYTES)
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
        warming = asyncio.create_task(asyncio.to_thread(cache.warm)) if cache.folder.single else None
        await told.wait()
        if warming:
            await warming
    finally:
        await runner.cleanup()
