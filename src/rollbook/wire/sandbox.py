"""A sandbox over HTTP: for workers that may not use namespaces, and for other programs.

    POST /run        {"code", "stdin", "files": {name: base64}, "limits": {...}}  ->  the result
    POST /run_code   SandboxFusion's request and answer
    POST /grade/HOW  {"code", "limits", ...}  ->  the verdict; HOW is function, inputs or calls
    POST /sessions   {"snapshot", "files", "limits"}  ->  {"session": NAME}
    POST /sessions/NAME/run   {"code", "limits"}  ->  the turn's result
    DELETE /sessions/NAME     (a session that nobody uses for a quarter of an hour ends by itself)
    GET  /health     which walls are in force, how much is under way

Every request needs the token, as `Authorization: Bearer TOKEN` or as the first part of the path: clients made for
SandboxFusion send no header. What does not fit the queue, or the room for sessions, is answered with 429 at once.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec
from aiohttp import web

from rollbook.core.json import JSON, encode
from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Sandbox, SandboxError
from rollbook.sandbox.errors import Full
from rollbook.sandbox.examination import TestsBroken
from rollbook.sandbox.grade import Grader
from rollbook.wire import fusion
from rollbook.wire.grading import GRADED, Graded
from rollbook.wire.sessions import LEASE_S, Sessions

BODY_LIMIT = 32 << 20
RETRY_AFTER_S = 1
MOST = Limits(seconds=300, memory_mb=16384, output_kb=16384, processes=256, files_mb=1024, wall_seconds=1200)
"""What a request may ask for at most: a limit without a bound is none."""

T = TypeVar("T")
Handler = Callable[[bytes, str], Awaitable[JSON]]


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of our own."""

    code: str
    stdin: str = ""
    files: dict[str, str] = {}
    limits: dict[str, int | float | None] = {}


class Begin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a session."""

    snapshot: bool = False
    files: dict[str, str] = {}
    limits: dict[str, int | float | None] = {}


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a turn of one."""

    code: str
    limits: dict[str, int | float | None] = {}


class SandboxServer:
    """Answers requests from one sandbox; at most `room` of them are under way or wait."""

    def __init__(self, box: Sandbox, token: str, room: int, lease_s: float = LEASE_S) -> None:
        self._box, self._token, self._room = box, token, room
        self._sessions = Sessions(box, lease_s)
        self._under_way = 0

    def app(self) -> web.Application:
        """The application, for aiohttp to serve."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.cleanup_ctx.append(self._sessions.kept)
        for prefix in ("", "/{token}"):
            app.router.add_get(prefix + "/health", self._health)
            app.router.add_post(prefix + "/run", self._answering(self._run))
            app.router.add_post(prefix + "/run_code", self._answering(self._run_code))
            for how, kind in GRADED.items():
                app.router.add_post(f"{prefix}/grade/{how}", self._answering(partial(self._grade, kind)))
            app.router.add_post(prefix + "/sessions", self._answering(self._begin))
            app.router.add_post(prefix + "/sessions/{session}/run", self._answering(self._turn))
            app.router.add_delete(prefix + "/sessions/{session}", self._answering(self._end))
        return app

    def _admit(self, request: web.Request) -> None:
        given = request.match_info.get("token") or request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(errors="replace"), self._token.encode()):
            raise web.HTTPUnauthorized(text='{"error": "no token, or a wrong one"}', content_type="application/json")

    async def _health(self, request: web.Request) -> web.Response:
        self._admit(request)
        walls: dict[str, JSON] = {"isolation": self._box.isolation, "packages": self._box.packages}
        return said(200, {**walls, "under_way": self._under_way, "room": self._room})

    def _answering(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        """The same gate for every kind of request: token, room, and every failure in its own status."""

        async def answer(request: web.Request) -> web.Response:
            self._admit(request)
            if self._under_way >= self._room:
                return full("too many requests under way")
            self._under_way += 1
            try:
                return said(200, await handler(await request.read(), request.match_info.get("session", "")))
            except web.HTTPRequestEntityTooLarge:
                return said(413, {"error": f"a request of more than {BODY_LIMIT} bytes"})
            except UsageError as error:
                return said(400, {"error": str(error)})
            except Full as error:
                return full(str(error))
            except TestsBroken as error:
                return said(422, {"error": str(error)})
            except SandboxError as error:
                return said(503, {"error": str(error)})
            finally:
                self._under_way -= 1

        return answer

    async def _run(self, body: bytes, _: str) -> JSON:
        asked = parsed(body, Run)
        limits = limits_of(self._box.limits, asked.limits)
        return await self._box.run(asked.code, stdin=asked.stdin, files=contents(asked.files), limits=limits)

    async def _grade(self, kind: type[Graded], body: bytes, _: str) -> JSON:
        asked = parsed(body, kind)
        return await asked.verdict(Grader(self._box), limits_of(self._box.limits, asked.limits))

    async def _run_code(self, body: bytes, _: str) -> JSON:
        asked = parsed(body, fusion.RunCode)
        asked.check()
        limits = bounded(asked.limits(self._box.limits))
        try:
            result = await self._box.run(asked.code, stdin=asked.stdin or "", files=asked.contents(), limits=limits)
        except Full:
            raise
        except SandboxError as error:
            return fusion.broken(str(error))
        return fusion.answer(result)

    async def _begin(self, body: bytes, _: str) -> JSON:
        asked = parsed(body, Begin)
        limits = limits_of(self._box.limits, asked.limits)
        return {"session": await self._sessions.begin(asked.snapshot, limits, contents(asked.files))}

    async def _turn(self, body: bytes, session: str) -> JSON:
        asked = parsed(body, Turn)
        limits = limits_of(self._sessions.limits(session), asked.limits) if asked.limits else None
        return await self._sessions.run(session, asked.code, limits)

    async def _end(self, _: bytes, session: str) -> JSON:
        await self._sessions.end(session)
        return {}


def contents(files: dict[str, str]) -> dict[str, bytes]:
    """Files as they came over the wire."""
    return {name: fusion.decoded(name, text) for name, text in files.items()}


def said(status: int, value: JSON, headers: dict[str, str] | None = None) -> web.Response:
    """An answer in JSON."""
    return web.Response(status=status, body=encode(value), content_type="application/json", headers=headers)


def full(words: str) -> web.Response:
    """There is no room: try again."""
    return said(429, {"error": words}, {"Retry-After": str(RETRY_AFTER_S)})


def parsed(body: bytes, kind: type[T]) -> T:
    """A request's body; UsageError says what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the request is not as it should be: {error}") from None


def limits_of(base: Limits, asked: dict[str, int | float | None]) -> Limits:
    """The server's limits with a request's own."""
    unknown = sorted(set(asked) - set(Limits.__struct_fields__))
    if unknown:
        raise UsageError(f"no limit is called {unknown[0]}; there are {', '.join(Limits.__struct_fields__)}")
    try:
        return bounded(msgspec.convert({**msgspec.structs.asdict(base), **asked}, Limits))
    except msgspec.ValidationError as error:
        raise UsageError(f"limits: {error}") from None


def bounded(limits: Limits) -> Limits:
    """Limits no higher than a server may be asked for."""
    for name in Limits.__struct_fields__:
        value, most = getattr(limits, name), getattr(MOST, name)
        if value is not None and value > most:
            raise UsageError(f"limit {name}={value:g}: at most {most:g} here")
    return limits
