"""Who may read: whoever has the token, from this machine, and no other web page on it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

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
OURS = ("same-origin", "none")
COOKIE = "rollbook"
DOOR = '<!doctype html><title>Rollbook</title><script src="{place}js/door.js"></script>'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """Checks every request, and gives the cookie to the page that was opened with the token in its address."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.place = f"/{hashlib.sha256(_bytes(token)).hexdigest()[:24]}/"
        """Where the page is. Cookies know no ports: one for `/` would be sent to every server on this machine."""

    def middleware(self) -> Middleware:
        """The guard as aiohttp takes it."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            words = self._refused(request)
            if words:
                return refusal(*words)
            came_by_link = request.path == "/" and "token" in request.query
            return self._led(request) if came_by_link else await _answered(request, handler)

        return guarded

    def _refused(self, request: web.Request) -> tuple[int, str] | None:
        if not addressed(request.headers.get("Host", ""), _port(request)):
            return 403, "this address is not ours"
        if not _from_here(request):
            return 403, "another page may not read this one"
        if request.method not in ("GET", "HEAD"):
            return 405, "there is nothing to write here"
        if not self._holds(request):
            return 401, "open the address that `rollbook view` has printed: it has the token in it"
        return None

    def _holds(self, request: web.Request) -> bool:
        given = [request.query.get("token", ""), request.cookies.get(COOKIE, "")]
        given.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        return any(hmac.compare_digest(_bytes(each), _bytes(self._token)) for each in given)

    def _led(self, request: web.Request) -> web.StreamResponse:
        """Whoever came with the token gets the cookie, and goes on to where the page is."""
        response = web.Response(text=DOOR.format(place=self.place), content_type="text/html", headers=HEADERS)
        response.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict", path=self.place)
        return response


def _port(request: web.Request) -> int:
    name = request.transport.get_extra_info("sockname") if request.transport else None
    return int(name[1]) if name else 0


def addressed(host: str, port: int) -> bool:
    """Whether a Host header names this machine and this port, which is left out where it is 80."""
    return host in [f"{name}:{port}" for name in LOOPBACK] or (port == 80 and host in LOOPBACK)


def _from_here(request: web.Request) -> bool:
    """A page of another origin says so; one that was opened by hand says nothing, or that it has no site."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "none")
    opened = request.headers.get("Sec-Fetch-Mode") == "navigate"  # a link in a web terminal is another site's
    return origin in (None, f"http://{request.headers.get('Host', '')}") and (site in OURS or opened)


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return refusal(error.status, error.reason)


def refusal(status: int, words: str) -> web.Response:
    """A refusal in one line."""
    return web.json_response({"error": words}, status=status, headers=HEADERS)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
