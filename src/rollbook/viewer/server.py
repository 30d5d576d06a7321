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
    GET /openapi.json                                  the description of all of these

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
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from rollbook import reports
from rollbook.book import MediaStore
from rollbook.core import JSON, JSON_ERRORS, MEDIA_TYPES, encode
from rollbook.errors import RollbookError, UsageError
from rollbook.processes import (
    EVENTS_TYPE,
    JSON_TYPE,
    ONE_LINE,
    Operation,
    Schema,
    add_operations,
    describe_operations,
    join_lines,
    read_query,
    run_event_loop,
    serve_runner,
)
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
METHODS = ("GET", "HEAD")
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
        if request.method not in METHODS:
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
    allow = {"Allow": ", ".join(METHODS)} if status == 405 else {}
    return web.json_response(
        {"error": join_lines(replace_surrogates(message))}, status=status, headers={**HEADERS, **allow}
    )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


PAGE_ROWS = 50
MAX_ROWS = 500
MAX_INTEGER = 1 << 40
POLL_S = 1.0
LIST_POLL_FACTOR = 3
"""The list of runs is polled less often than one run: it is longer."""

MAX_STREAMS = 32


Index = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
PageSize = Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]


class NoQuery(msgspec.Struct, frozen=True):
    """No parameters."""


class RunQuery(msgspec.Struct, frozen=True):
    """A run of the folder."""

    run: Name


class TasksQuery(RunQuery, frozen=True):
    """A piece of a run's table."""

    keep: str = ""
    sort: str = ""
    desc: bool = False
    offset: Index = 0
    limit: PageSize = PAGE_ROWS


class TaskQuery(RunQuery, frozen=True):
    """The samples of a task."""

    task: Name
    offset: Index = 0


class RolloutQuery(RunQuery, frozen=True):
    """One rollout, or a failed attempt at it."""

    task: Name
    sample: Index
    attempt: Index | None = None


class TokensQuery(RolloutQuery, frozen=True):
    """A piece of the tokens of a rollout."""

    sequence: Index = 0
    offset: Index = 0


class CompareQuery(msgspec.Struct, frozen=True):
    """Two runs."""

    a: Name
    b: Name
    common: bool = False
    offset: Index = 0
    limit: PageSize = PAGE_ROWS


class MediaQuery(RunQuery, frozen=True):
    """An image or a sound of a run."""

    name: Name


class SearchQuery(RunQuery, frozen=True):
    """A text to find in a run."""

    text: Name


class LiveQuery(msgspec.Struct, frozen=True):
    """A run to watch; the list of runs if none is named."""

    run: str = ""


REFUSAL = {"type": "object", "properties": {"error": ONE_LINE}, "required": ["error"]}
ERRORS: dict[int, Schema] = dict.fromkeys((400, 401, 403, 409, 429), REFUSAL)
SECURITY: dict[str, JSON] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "query": {"type": "apiKey", "in": "query", "name": "token"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
}
Q = TypeVar("Q", bound=msgspec.Struct)


class ViewerApi:
    """Answers requests from the runs of one cache."""

    def __init__(self, cache: RunCache, every_s: float = POLL_S) -> None:
        self._cache, self._runs, self._every_s = cache, RunList(cache), every_s
        self._leaderboard = LeaderboardPage(cache)
        self._streams = 0

    def list_operations(self) -> list[Operation]:
        """Return the routes of the API."""
        media = sorted({"text/plain", *MEDIA_TYPES.values()})
        return [
            make_page(
                "runs", "every run of the folder", NoQuery, self._list_runs, "folder", "single", "models", "runs"
            ),
            make_page("leaderboard", "the models of the folder", NoQuery, lambda _: self._leaderboard.read()),
            make_page("run", "the numbers and charts of a run", RunQuery, self._run, "report"),
            make_page("tasks", "a piece of its table", TasksQuery, self._tasks, "rows"),
            make_page("task", "the samples of a task", TaskQuery, self._task, "samples"),
            make_page("rollout", "one rollout, or a failed attempt at it", RolloutQuery, self._rollout, "raw"),
            make_page("tokens", "its exact tokens", TokensQuery, self._tokens, "sequences"),
            make_page("compare", "two runs", CompareQuery, self._compare),
            make_operation("media", "an image or a sound", self._send_media, MediaQuery, *media),
            self._make_stream("search", "a stream of progress and hits", SearchQuery, self._search),
            self._make_stream("live", "a stream of events when something has changed", LiveQuery, self._live),
        ]

    def _run(self, query: RunQuery) -> JSON:
        return make_run_page(query.run, self._cache.take_snapshot(query.run))

    def _list_runs(self, _: NoQuery) -> JSON:
        folder = self._cache.folder
        models = not folder.single and reports.is_model_folder(folder.root)
        return {"folder": folder.name, "single": folder.single, "models": models, "runs": self._runs.rows()}

    def _tasks(self, query: TasksQuery) -> JSON:
        snapshot = self._cache.take_snapshot(query.run)
        return make_task_rows(snapshot, query.keep, query.sort, query.desc, query.offset, query.limit)

    def _task(self, query: TaskQuery) -> JSON:
        snapshot = self._cache.take_snapshot(query.run)
        return make_task_page(snapshot, snapshot.row(query.task), query.offset)

    def _rollout(self, query: RolloutQuery) -> JSON:
        snapshot = self._cache.take_snapshot(query.run)
        return make_rollout_page(snapshot, snapshot.row(query.task), query.sample, query.attempt)

    def _tokens(self, query: TokensQuery) -> JSON:
        snapshot = self._cache.take_snapshot(query.run)
        row = snapshot.row(query.task)
        return make_token_page(snapshot, row, query.sample, query.attempt, query.sequence, query.offset)

    def _compare(self, query: CompareQuery) -> JSON:
        a, b = self._cache.take_snapshot(query.a), self._cache.take_snapshot(query.b)
        return make_compare_page(a, b, query.common, query.offset, query.limit)

    async def _send_media(self, request: web.Request) -> web.StreamResponse:
        """Send an image or a sound, after checking that it is what was stored."""
        try:
            query = read_query(request, MediaQuery)
            run = self._cache.folder.path(query.run)
            media = await asyncio.to_thread(lambda: MediaStore(run).read(query.name))
        except UsageError as error:
            return make_refusal(400, str(error))
        except (RollbookError, OSError) as error:
            return make_refusal(409, str(error))
        return web.Response(body=media.data, headers=make_media_headers(media.suffix))

    def _make_stream(
        self, name: str, summary: str, kind: type[Q], stream: Callable[[Q, web.StreamResponse], Awaitable[None]]
    ) -> Operation:
        """Return the route of server-sent events, of which at most MAX_STREAMS run at once."""

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                query = read_query(request, kind)
            except UsageError as error:
                return make_refusal(400, str(error))
            if self._streams >= MAX_STREAMS:
                return make_refusal(429, "too many pages are open: close some")
            response = web.StreamResponse(headers={**HEADERS, "Content-Type": EVENTS_TYPE})
            self._streams += 1
            try:
                await response.prepare(request)
                await stream(query, response)
            except ConnectionError:
                pass  # the page was closed
            except (RollbookError, OSError, *JSON_ERRORS) as error:
                await send_event(response, {"error": replace_surrogates(str(error))})
            finally:
                self._streams -= 1
            return response

        return make_operation(name, summary, answer, kind, EVENTS_TYPE)

    async def _search(self, query: SearchQuery, response: web.StreamResponse) -> None:
        search = await asyncio.to_thread(lambda: TextSearch(self._cache.take_snapshot(query.run), query.text))
        steps = search.steps()
        while (step := await asyncio.to_thread(next, steps, None)) is not None:
            await send_event(response, step)
        await send_event(response, {"end": True})

    async def _live(self, query: LiveQuery, response: web.StreamResponse) -> None:
        """Send an event when something has changed; the page then requests what it shows."""
        look, every_s = (
            (self._read_version, self._every_s) if query.run else (self._read_list, LIST_POLL_FACTOR * self._every_s)
        )
        previous: JSON = None
        while True:
            now = await asyncio.to_thread(look, query)
            await (send_event(response, now) if now != previous else response.write(b": still here\n\n"))
            previous = now
            await asyncio.sleep(every_s)

    def _read_version(self, query: LiveQuery) -> JSON:
        """Return the current version: a request after this event gets no older run."""
        snapshot = self._cache.take_snapshot(query.run)
        return {"version": snapshot.version, "state": snapshot.state}

    def _read_list(self, _: LiveQuery) -> JSON:
        return {"runs": self._runs.rows()}


def make_media_headers(suffix: str) -> dict[str, str]:
    """Return the headers of an image or a sound: it is never run, and what could hold a script is only plain text."""
    active = suffix in ACTIVE_SUFFIXES
    kind = {"Content-Type": "text/plain" if active else MEDIA_TYPES.get(suffix, "application/octet-stream")}
    kept = {"Content-Disposition": "attachment"} if active else {}
    return {**HEADERS, **kind, **kept, "Content-Security-Policy": "default-src 'none'; sandbox"}


def make_operation(
    name: str, summary: str, handler: Handler, query: type[msgspec.Struct], *media: str, reply: Schema | None = None
) -> Operation:
    """Return a route of the API."""
    return Operation("GET", f"/api/{name}", summary, handler, reply or {}, ERRORS, query=query, media=media)


def make_page(name: str, summary: str, kind: type[Q], answer: Callable[[Q], JSON], *fields: str) -> Operation:
    """Return a route that answers with a page of data, which always has these fields."""
    reply: dict[str, JSON] = {"type": "object", "required": list(fields)}
    return make_operation(name, summary, make_json_handler(kind, answer), kind, JSON_TYPE, reply=reply)


def make_json_handler(kind: type[Q], answer: Callable[[Q], JSON]) -> Handler:
    """Return a handler that computes the answer in a thread; an error becomes a one-line refusal."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = await asyncio.to_thread(lambda: encode(answer(read_query(request, kind))))
        except UsageError as error:
            return make_refusal(400, str(error))
        except (RollbookError, OSError, *JSON_ERRORS) as error:
            return make_refusal(409, str(error))
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
    operations = [*ViewerApi(cache).list_operations(), *list_assets()]
    described = describe_operations("Rollbook viewer", operations, security=SECURITY, guard=_add_headers, errors=ERRORS)
    add_operations(app, described)  # for clients that send the token itself
    add_operations(app, described, guard.prefix.rstrip("/"))  # for those with the cookie
    return app


def list_assets() -> list[Operation]:
    """Return the routes of the page and its files."""
    files = {f"/{path.relative_to(WEB_FOLDER).as_posix()}": path for path in sorted(WEB_FOLDER.rglob("*"))}
    files = {name: path for name, path in files.items() if path.suffix in CONTENT_TYPES}
    return [
        Operation("GET", name, path.name, _make_asset_handler(path), {}, ERRORS, media=(CONTENT_TYPES[path.suffix],))
        for name, path in {**files, "/": WEB_FOLDER / "index.html"}.items()
    ]


def _add_headers(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await handler(request)
        response.headers.update(HEADERS)
        return response

    return answer


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
