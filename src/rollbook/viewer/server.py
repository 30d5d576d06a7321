"""The viewer's server: on loopback, protected by a token; its access checks and JSON API.

    GET /api/runs                                      every run of the folder
    GET /api/leaderboard                               its models, if they ran on the same tasks with run --each
    GET /api/run?run=                                  the numbers and charts of one
    GET /api/tasks?run=&keep=&sort=&desc=&offset=&limit=   a piece of its table
    GET /api/task?run=&task=&offset=                   the samples of a task
    GET /api/rollout?run=&task=&sample=&attempt=       one rollout, or a failed attempt at it
    GET /api/tokens?run=&task=&sample=&attempt=&sequence=&offset=   its exact tokens
    GET /api/compare?a=&b=&common=&offset=&limit=      two runs
    GET /api/media?run=&name=                          an image or a sound of its messages
    GET /api/search?run=&text=                         a stream of progress and hits
    GET /api/live?run=                                 a stream of events when something has changed

A request that cannot be answered gets `{"error": one line}`, and no path ever comes from a request. Only clients
on this machine with the token may read, and no other web page on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from rollbook import reports
from rollbook.book import MediaStore
from rollbook.core import JSON, JSON_ERRORS, MEDIA_TYPES, encode
from rollbook.errors import RollbookError, UsageError
from rollbook.processes import run_event_loop, serve_runner
from rollbook.viewer.export import WEB_FOLDER
from rollbook.viewer.rollout_pages import make_rollout_page, make_token_page
from rollbook.viewer.run_cache import RunCache
from rollbook.viewer.run_overview import LeaderboardPage, RunList, make_compare_page, make_run_page
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
        "media-src 'self' data:",
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
    """Checks every request, and sets the cookie for the page that was opened with the token in its address."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.prefix = f"/{hashlib.sha256(_encode(token)).hexdigest()[:24]}/"
        """The path of the page. Cookies are not bound to ports: one for `/` would be sent to every local server."""

    def middleware(self) -> Middleware:
        """Return the guard as aiohttp middleware."""

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
            return 403, "the viewer does not serve this address"
        if not _is_same_origin(request):
            return 403, "requests from other web pages are refused"
        if request.method not in ("GET", "HEAD"):
            return 405, "the viewer is read-only"
        if not self._has_token(request):
            return 401, "open the address that `rollbook view` has printed: it has the token in it"
        return None

    def _has_token(self, request: web.Request) -> bool:
        tokens = [request.query.get("token", ""), request.cookies.get(COOKIE, "")]
        tokens.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        return any(hmac.compare_digest(_encode(each), _encode(self._token)) for each in tokens)

    def _set_cookie(self, request: web.Request) -> web.StreamResponse:
        """Set the cookie for a client that sent the token, and redirect it to the page."""
        response = web.Response(text=ENTRY_PAGE.format(place=self.prefix), content_type="text/html", headers=HEADERS)
        response.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict", path=self.prefix)
        return response


def _server_port(request: web.Request) -> int:
    name = request.transport.get_extra_info("sockname") if request.transport else None
    return int(name[1]) if name else 0


def is_own_host(host: str, port: int) -> bool:
    """Return whether a Host header names this machine and this port, which is omitted if it is 80."""
    return host in [f"{name}:{port}" for name in LOOPBACK] or (port == 80 and host in LOOPBACK)


def _is_same_origin(request: web.Request) -> bool:
    """Return whether a request is from our page: browsers name another origin; a page opened by hand has none."""
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
    """Return a refusal with a one-line error."""
    return web.json_response({"error": message}, status=status, headers=HEADERS)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


PAGE_ROWS = 50
MAX_ROWS = 500
MAX_INTEGER = 1 << 40
POLL_S = 1.0
LIST_POLL_FACTOR = 3
"""The list of runs is polled less often than one run: it is longer."""

MAX_STREAMS = 32


class ViewerApi:
    """Answers requests from the runs of one cache."""

    def __init__(self, cache: RunCache, every_s: float = POLL_S) -> None:
        self._cache, self._runs, self._every_s = cache, RunList(cache), every_s
        self._leaderboard = LeaderboardPage(cache)
        self._streams = 0

    def add_routes(self, app: web.Application, prefix: str) -> None:
        """Add the routes below a prefix."""
        answers: dict[str, Callable[[RequestQuery], JSON]] = {
            "runs": self._list_runs,
            "leaderboard": lambda q: self._leaderboard.read(),
            "run": lambda q: make_run_page(q.text("run"), self._cache.take_snapshot(q.text("run"))),
            "tasks": self._tasks,
            "task": self._task,
            "rollout": self._rollout,
            "tokens": self._tokens,
            "compare": self._compare,
        }
        for name, answer in answers.items():
            app.router.add_get(f"{prefix}api/{name}", make_json_handler(answer))
        app.router.add_get(f"{prefix}api/media", self._send_media)
        app.router.add_get(f"{prefix}api/search", self._make_stream_handler(self._search), allow_head=False)
        app.router.add_get(f"{prefix}api/live", self._make_stream_handler(self._live), allow_head=False)

    def _list_runs(self, query: RequestQuery) -> JSON:
        folder = self._cache.folder
        models = not folder.single and reports.is_model_folder(folder.root)
        return {"folder": folder.name, "single": folder.single, "models": models, "runs": self._runs.rows()}

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

    async def _send_media(self, request: web.Request) -> web.StreamResponse:
        """Send an image or a sound, after checking that it is what was stored."""
        query = RequestQuery(request)
        try:
            run = self._cache.folder.path(query.text("run"))
            media = await asyncio.to_thread(lambda: MediaStore(run).read(query.text("name")))
        except UsageError as error:
            return make_refusal(400, replace_surrogates(str(error)))
        except (RollbookError, OSError) as error:
            return make_refusal(409, replace_surrogates(str(error)))
        return web.Response(body=media.data, headers=make_media_headers(media.suffix))

    def _make_stream_handler(self, stream: Callable[[RequestQuery, web.StreamResponse], Awaitable[None]]) -> Handler:
        """Return a handler of server-sent events, of which at most MAX_STREAMS run at once."""

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
            except (RollbookError, OSError, *JSON_ERRORS) as error:
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
        while (step := await asyncio.to_thread(next, steps, None)) is not None:
            await send_event(response, step)
        await send_event(response, {"end": True})

    async def _live(self, query: RequestQuery, response: web.StreamResponse) -> None:
        """Send an event when something has changed; the page then requests what it shows."""
        single = bool(query.text("run", ""))
        look, every_s = (
            (self._read_version, self._every_s) if single else (self._read_list, LIST_POLL_FACTOR * self._every_s)
        )
        previous: JSON = None
        while True:
            now = await asyncio.to_thread(look, query)
            await (send_event(response, now) if now != previous else response.write(b": still here\n\n"))
            previous = now
            await asyncio.sleep(every_s)

    def _read_version(self, query: RequestQuery) -> JSON:
        """Return the current version: a request after this event gets no older run."""
        snapshot = self._cache.take_snapshot(query.text("run"))
        return {"version": snapshot.version, "state": snapshot.state}

    def _read_list(self, query: RequestQuery) -> JSON:
        return {"runs": self._runs.rows()}


def make_media_headers(suffix: str) -> dict[str, str]:
    """Return the headers of an image or a sound: it is never run, and what could hold a script is only plain text."""
    active = suffix in ACTIVE_SUFFIXES
    kind = {"Content-Type": "text/plain" if active else MEDIA_TYPES.get(suffix, "application/octet-stream")}
    kept = {"Content-Disposition": "attachment"} if active else {}
    return {**HEADERS, **kind, **kept, "Content-Security-Policy": "default-src 'none'; sandbox"}


class RequestQuery:
    """The parameters of a request, each with its bounds."""

    def __init__(self, request: web.Request) -> None:
        self._parameters = request.query

    def text(self, name: str, default: str | None = None) -> str:
        """Return a parameter; one without a default is required."""
        value = self._parameters.get(name, default)
        if value is None:
            raise UsageError(f"the request names no {name}")
        return value

    def integer(self, name: str, default: int | None = None, maximum: int = MAX_INTEGER) -> int:
        """Return a whole number from 0 to `maximum`."""
        text = self.text(name, None if default is None else str(default))
        if not (text.isascii() and text.isdigit()) or len(text) > 15 or int(text) > maximum:
            raise UsageError(f"{name}={text[:40]}: write a number from 0 to {maximum}")
        return int(text)

    def optional_integer(self, name: str) -> int | None:
        """Return a whole number, or None if it is absent."""
        return self.integer(name) if self._parameters.get(name) else None

    def flag(self, name: str) -> bool:
        """Return whether a flag is set."""
        return self._parameters.get(name, "") in ("1", "true")


def make_json_handler(answer: Callable[[RequestQuery], JSON]) -> Handler:
    """Return a handler that computes the answer in a thread; an error becomes a one-line refusal."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = await asyncio.to_thread(lambda: encode(answer(RequestQuery(request))))
        except UsageError as error:
            return make_refusal(400, replace_surrogates(str(error)))
        except (RollbookError, OSError, *JSON_ERRORS) as error:
            return make_refusal(409, replace_surrogates(str(error)))
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    return handle


async def send_event(response: web.StreamResponse, value: JSON) -> None:
    """Send one event."""
    await response.write(b"data: " + encode(value) + b"\n\n")


ACTIVE_SUFFIXES = ("svg",)
"""Images that can hold scripts."""
HOST = "127.0.0.1"
SHUTDOWN_TIMEOUT_S = 0.5
MAX_URL_BYTES = 1 << 16
"""The longest address: it contains task ids and filters, three bytes for each of theirs."""

CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def make_app(cache: RunCache, token: str) -> web.Application:
    """Return the application: the page, its assets and the API."""
    guard = AccessGuard(token)
    app = web.Application(middlewares=[guard.middleware()])
    api = ViewerApi(cache)
    for place in ("/", guard.prefix):  # for clients that send the token itself, and for those with the cookie
        api.add_routes(app, place)
        for path in sorted(WEB_FOLDER.rglob("*")):
            if path.suffix in CONTENT_TYPES:
                app.router.add_get(f"{place}{path.relative_to(WEB_FOLDER).as_posix()}", _make_asset_handler(path))
        app.router.add_get(place, _make_asset_handler(WEB_FOLDER / "index.html"))
    return app


def _make_asset_handler(path: Path) -> Handler:
    """Return a handler for one of our files: what is served is decided at start, never by a request."""
    body = path.read_bytes()

    async def serve_asset(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=CONTENT_TYPES[path.suffix], charset="utf-8", headers=HEADERS)

    return serve_asset


def view(cache: RunCache, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called with the address, which has the token in it."""
    run_event_loop(lambda: _serve_until_signal(cache, port, ready))


async def _serve_until_signal(cache: RunCache, port: int, ready: Callable[[str], None]) -> None:
    token, warming = secrets.token_urlsafe(24), list[asyncio.Task[None]]()
    app = make_app(cache, token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S, max_line_size=MAX_URL_BYTES)

    def on_ready(url: str) -> None:
        ready(f"{url}/?token={token}")
        if cache.folder.single:
            warming.append(asyncio.create_task(asyncio.to_thread(cache.warm)))

    await serve_runner(runner, HOST, port, on_ready, f"--port {port}")
    await asyncio.gather(*warming)
