"""A sandbox over HTTP: for workers that may not use namespaces, and for other programs.

    POST /run        {"code", "stdin", "files": {name: base64}, "limits": {...}}  ->  the result
    POST /run_code   SandboxFusion's request and answer
    POST /grade/HOW  {"code", "limits", ...}  ->  the verdict; HOW is function, inputs or calls
    POST /sessions   {"snapshot", "files", "limits"}  ->  {"session": NAME}
    POST /sessions/NAME/run   {"code", "limits"}  ->  the turn's result
    DELETE /sessions/NAME     (a session that is not used for a quarter of an hour ends by itself)
    GET  /health     which layers of isolation are in force, how many requests are under way
    GET  /openapi.json   the description of all of these

Every request needs the token, as `Authorization: Bearer TOKEN` or as the first part of the path: clients made for
SandboxFusion send no header. What does not fit the queue, or the room for sessions, is answered with 429 at once.

SandboxFusion's `/run_code` is translated to a run of ours and back. A session has an unguessable name and ends when
it was unused for a while.
"""

from __future__ import annotations

import hmac
import secrets
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web

from rollbook.core import JSON, JSON_ERRORS
from rollbook.errors import SandboxError, SandboxFull, TestsBroken, UsageError
from rollbook.processes import (
    OBJECT,
    ONE_LINE,
    ExpiringSessions,
    Operation,
    RequestHandler,
    Schema,
    add_operations,
    describe_operations,
    join_lines,
    json_response,
    make_refusal_middleware,
)
from rollbook.sandbox.grading import Grader
from rollbook.sandbox.inner.plain_data import NotPlain, unpack
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.outputs import Rule, Tolerance
from rollbook.sandbox.results import Result, RunStatus, Verdict
from rollbook.sandbox.sandbox import Sandbox
from rollbook.sandbox.session import Session

IDLE_TIMEOUT_S = 900.0


class SandboxSessions:
    """The open sessions by their unguessable names. The sandbox itself bounds how many there are."""

    def __init__(self, sandbox: Sandbox, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self._sandbox = sandbox
        self.table = ExpiringSessions[Session](
            lambda session: session.__aexit__(),
            not_found=f"no session has that name: it has ended, or was unused for {idle_timeout_s:g} s",
            idle_timeout_s=idle_timeout_s,
            max_sessions=sys.maxsize,
            exclusive=False,
        )

    async def open(self, snapshot: bool, limits: Limits, files: Mapping[str, bytes]) -> str:
        """Open a session; return its name."""
        name = secrets.token_urlsafe(16)
        await self.table.open(name, self._sandbox.session(snapshot, limits, files).__aenter__)
        return name

    async def run(self, name: str, code: str, own_limits: Mapping[str, int | float | None]) -> Result:
        """Run one turn, with its own limits on top of the session's."""
        async with self.table.use(name) as session:
            return await session.run(code, merge_limits(session.limits, own_limits) if own_limits else None)


WALL_CLOCK_MARGIN_S = 5.0
"""Its limit is wall-clock time; ours is CPU time plus this wall-clock time, so that a busy host changes no score."""

_ENDINGS: dict[RunStatus, tuple[str, int | None]] = {
    "ok": ("Finished", 0),
    "error": ("Finished", 1),
    "memory": ("Finished", 1),
    "crash": ("Finished", -11),
    "timeout": ("TimeLimitExceeded", None),
    "output": ("Error", None),
    "killed": ("Error", None),
}
"""How a run ended and its return code; never 0 for what did not end well by itself."""


Code = Annotated[str, msgspec.Meta(examples=["print(6 * 7)"])]
Files = dict[str, Annotated[str, msgspec.Meta(extra_json_schema={"contentEncoding": "base64"})]]
PackedCases = Annotated[JSON, msgspec.Meta(examples=[["l", [["t", [["l", [6, 7]], 42]]]]])]


class RunCodeRequest(msgspec.Struct, frozen=True):
    """What a client of SandboxFusion sends."""

    code: Code
    language: str = "python"
    stdin: str | None = None
    run_timeout: float = 10.0
    memory_limit_MB: int = -1
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []

    def make_limits(self, base: Limits) -> Limits:
        """Its limits on top of the server's; a negative memory limit means no limit of its own."""
        memory = base.memory_mb if self.memory_limit_MB < 0 else self.memory_limit_MB
        wall_s = self.run_timeout + WALL_CLOCK_MARGIN_S
        return msgspec.structs.replace(base, seconds=self.run_timeout, wall_seconds=wall_s, memory_mb=memory)

    def check(self) -> None:
        """Refuse what would otherwise be left out silently."""
        if self.language != "python":
            raise UsageError(f"language {self.language!r}: only python runs here")
        if self.fetch_files:
            raise UsageError("fetch_files: files cannot be fetched from a run here; print what you need")

    def decode_files(self) -> dict[str, bytes]:
        """The files to put next to the program."""
        return {name: decode_file(name, text) for name, text in self.files.items() if text is not None}


def decode_file(name: str, text: str) -> bytes:
    """A file as it came over the wire."""
    try:
        return b64decode(text, validate=True)
    except ValueError:  # not base64, or not even ASCII
        raise UsageError(f"file {name!r} is not base64") from None


RUN_CODE_REPLY: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "status": {"enum": ["Success", "Failed", "SandboxError"]},
        "message": {"type": "string"},
        "run_result": {"type": ["object", "null"]},
    },
    "required": ["status", "message", "run_result"],
}


def make_run_code_answer(result: Result) -> dict[str, JSON]:
    """A result in SandboxFusion's words."""
    ended, return_code = _ENDINGS[result.status]
    if result.status == "error" and result.exit is not None:
        return_code = result.exit
    return {
        "status": "Success" if result.status == "ok" else "Failed",
        "message": "" if result.status in ("ok", "error") else result.status,
        "compile_result": None,
        "run_result": {
            "status": ended,
            "execution_time": result.seconds,
            "return_code": return_code,
            "stdout": result.stdout,
            "stderr": result.stderr + (result.error.traceback if result.error else ""),
        },
        "executor_pod_name": None,
        "files": {},
    }


def make_sandbox_error(message: str) -> dict[str, JSON]:
    """The sandbox itself failed: its clients give no score for that."""
    return {"status": "SandboxError", "message": message, "compile_result": None, "run_result": None, "files": {}}


RequestLimits = Annotated[
    dict[str, int | float | None],
    msgspec.Meta(extra_json_schema={"propertyNames": {"enum": [*Limits.__struct_fields__]}}),
]


class GradeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What can be asked to be graded."""

    code: Code
    limits: RequestLimits = {}

    async def grade(self, grader: Grader, limits: Limits) -> Verdict:
        """Have it graded."""
        raise NotImplementedError


class FunctionGradeRequest(GradeRequest):
    """Tests in Python."""

    tests: str
    entry: str
    check: str = ""
    setup: str = ""
    weak: bool = False
    in_place: bool = False
    is_class: bool | None = None

    async def grade(self, grader: Grader, limits: Limits) -> Verdict:
        """Run the tests."""
        return await grader.function(
            self.code,
            self.tests,
            self.entry,
            check=self.check,
            setup=self.setup,
            limits=limits,
            allow_weak=self.weak,
            in_place=self.in_place,
            is_class=self.is_class,
        )


class InputsGradeRequest(GradeRequest):
    """Programs that read and print."""

    cases: list[tuple[str, str]]
    rule: Rule = Rule()
    all_of_them: bool = False

    async def grade(self, grader: Grader, limits: Limits) -> Verdict:
        """Run the program on every input."""
        return await grader.inputs(self.code, self.cases, rule=self.rule, limits=limits, all_of_them=self.all_of_them)


class CallsGradeRequest(GradeRequest):
    """Functions that are called; the cases are packed, as values are that cross between sandboxes."""

    entry: str
    cases: PackedCases
    tolerance: Tolerance = 1e-9
    all_of_them: bool = False

    async def grade(self, grader: Grader, limits: Limits) -> Verdict:
        """Call the function with the arguments of every case."""
        try:
            cases = [(args, expected) for args, expected in unpack(self.cases, _refuse_handle)]
        except (NotPlain, TypeError, ValueError, KeyError, RecursionError) as error:
            raise UsageError(f"cases: {error}") from None
        return await grader.calls(
            self.code, self.entry, cases, tolerance=self.tolerance, limits=limits, all_of_them=self.all_of_them
        )


def _refuse_handle(tag: str, _: JSON) -> JSON:
    raise NotPlain(f"no plain data is tagged {tag!r}")


GRADE_REQUESTS: dict[str, type[GradeRequest]] = {
    "function": FunctionGradeRequest,
    "inputs": InputsGradeRequest,
    "calls": CallsGradeRequest,
}


MAX_BODY_BYTES = 32 << 20
RETRY_AFTER_S = 1
MAX_LIMITS = Limits(seconds=300, memory_mb=16384, output_kb=16384, processes=256, files_mb=1024, wall_seconds=1200)
"""The highest limits that a request may set: a limit without a bound is not a limit."""

T = TypeVar("T")
Handler = Callable[[bytes, str], Awaitable[JSON]]


class ErrorBody(msgspec.Struct, frozen=True):
    """What every refusal says."""

    error: Annotated[str, msgspec.Meta(extra_json_schema=ONE_LINE)]


class HealthReply(msgspec.Struct, frozen=True):
    """Which layers of isolation are in force, and how many requests are under way."""

    isolation: Sequence[str]
    packages: Sequence[str]
    under_way: int
    room: int


class SessionReply(msgspec.Struct, frozen=True):
    """The name of a new session."""

    session: str


ERRORS: dict[int, Schema] = dict.fromkeys((400, 401, 413, 422, 429, 503), ErrorBody)
SECURITY: dict[str, JSON] = {"token": {"type": "http", "scheme": "bearer"}}
LINKS = {name: {"session": "session"} for name in ("post_sessions_session_run", "delete_sessions_session")}


class RunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of our own."""

    code: Code
    stdin: str = ""
    files: Files = {}
    limits: RequestLimits = {}


class BeginSessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a session."""

    snapshot: bool = False
    files: Files = {}
    limits: RequestLimits = {}


class TurnRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a turn of one."""

    code: Code
    limits: RequestLimits = {}


class SandboxServer:
    """Answers requests from one sandbox; at most `room` of them are under way or wait."""

    def __init__(self, box: Sandbox, token: str, room: int, lease_s: float = IDLE_TIMEOUT_S) -> None:
        self._box, self._token, self._room = box, token, room
        self._sessions = SandboxSessions(box, lease_s)
        self._under_way = 0

    def make_app(self) -> web.Application:
        """The application, for aiohttp to serve."""
        refusals = make_refusal_middleware(lambda _, status, reason: make_error_response(reason, status))
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[refusals])
        app.cleanup_ctx.append(self._sessions.table.cleanup_context)
        operations = describe_operations(
            "Rollbook sandbox", self._list_operations(), security=SECURITY, guard=self._require_token, errors=ERRORS
        )
        for prefix in ("", "/{token}"):
            add_operations(app, operations, prefix)
        return app

    def _list_operations(self) -> list[Operation]:
        def post(path: str, summary: str, handler: Handler, body: type[msgspec.Struct], reply: Schema) -> Operation:
            return Operation("POST", path, summary, self._make_handler(handler), reply, ERRORS, body)

        grades = [
            post(f"/grade/{how}", f"grade by {how}", partial(self._grade, kind), kind, Verdict)
            for how, kind in GRADE_REQUESTS.items()
        ]
        end = self._make_handler(self._end)
        return [
            Operation(
                "GET", "/health", "the state of the server", self._require_token(self._health), HealthReply, ERRORS
            ),
            post("/run", "run a program", self._run, RunRequest, Result),
            post("/run_code", "run a program, as SandboxFusion does", self._run_code, RunCodeRequest, RUN_CODE_REPLY),
            *grades,
            replace(post("/sessions", "open a session", self._begin, BeginSessionRequest, SessionReply), links=LINKS),
            post("/sessions/{session}/run", "run one turn", self._turn, TurnRequest, Result),
            Operation("DELETE", "/sessions/{session}", "end a session, if it is open", end, OBJECT, ERRORS),
        ]

    def _require_token(self, handler: RequestHandler) -> RequestHandler:
        async def answer(request: web.Request) -> web.StreamResponse:
            self._check_token(request)
            return await handler(request)

        return answer

    def _check_token(self, request: web.Request) -> None:
        given = request.match_info.get("token") or request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(errors="replace"), self._token.encode()):
            raise web.HTTPUnauthorized(reason="no token, or a wrong one")

    async def _health(self, _: web.Request) -> web.Response:
        return json_response(HealthReply(self._box.isolation, self._box.packages, self._under_way, self._room))

    def _make_handler(self, handler: Handler) -> RequestHandler:
        """The same gate for every kind of request: token, room, and every failure in its own status."""

        async def answer(request: web.Request) -> web.Response:
            self._check_token(request)
            if self._under_way >= self._room:
                return make_full_response("too many requests under way")
            self._under_way += 1
            try:
                return json_response(await handler(await request.read(), request.match_info.get("session", "")))
            except web.HTTPRequestEntityTooLarge:
                return make_error_response(f"a request of more than {MAX_BODY_BYTES} bytes", 413)
            except UsageError as error:
                return make_error_response(str(error), 400)
            except SandboxFull as error:
                return make_full_response(str(error))
            except TestsBroken as error:
                return make_error_response(str(error), 422)
            except SandboxError as error:
                return make_error_response(str(error), 503)
            finally:
                self._under_way -= 1

        return answer

    async def _run(self, body: bytes, _: str) -> JSON:
        asked = parse_request(body, RunRequest)
        limits = merge_limits(self._box.limits, asked.limits)
        return await self._box.run(asked.code, stdin=asked.stdin, files=decode_files(asked.files), limits=limits)

    async def _grade(self, kind: type[GradeRequest], body: bytes, _: str) -> JSON:
        asked = parse_request(body, kind)
        return await asked.grade(Grader(self._box), merge_limits(self._box.limits, asked.limits))

    async def _run_code(self, body: bytes, _: str) -> JSON:
        asked = parse_request(body, RunCodeRequest)
        asked.check()
        limits = check_bounds(asked.make_limits(self._box.limits))
        try:
            result = await self._box.run(asked.code, stdin=asked.stdin or "", files=asked.decode_files(), limits=limits)
        except SandboxFull:
            raise
        except SandboxError as error:
            return make_sandbox_error(str(error))
        return make_run_code_answer(result)

    async def _begin(self, body: bytes, _: str) -> JSON:
        asked = parse_request(body, BeginSessionRequest)
        limits = merge_limits(self._box.limits, asked.limits)
        return SessionReply(await self._sessions.open(asked.snapshot, limits, decode_files(asked.files)))

    async def _turn(self, body: bytes, session: str) -> JSON:
        asked = parse_request(body, TurnRequest)
        return await self._sessions.run(session, asked.code, asked.limits)

    async def _end(self, _: bytes, session: str) -> JSON:
        await self._sessions.table.end(session)
        return {}


def decode_files(files: dict[str, str]) -> dict[str, bytes]:
    """Files as they came over the wire."""
    return {name: decode_file(name, text) for name, text in files.items()}


def make_full_response(words: str) -> web.Response:
    """There is no room: try again."""
    return make_error_response(words, 429, {"Retry-After": str(RETRY_AFTER_S)})


def make_error_response(words: str, status: int, headers: dict[str, str] | None = None) -> web.Response:
    """A refusal."""
    return json_response(ErrorBody(join_lines(words)), status, headers)


def parse_request(body: bytes, kind: type[T]) -> T:
    """A request's body; UsageError says what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except JSON_ERRORS as error:
        raise UsageError(f"the request is invalid: {error}") from None


def merge_limits(base: Limits, asked: Mapping[str, int | float | None]) -> Limits:
    """The server's limits with a request's own."""
    unknown = sorted(set(asked) - set(Limits.__struct_fields__))
    if unknown:
        raise UsageError(f"no limit is called {unknown[0]}; there are {', '.join(Limits.__struct_fields__)}")
    try:
        return check_bounds(msgspec.convert({**msgspec.structs.asdict(base), **asked}, Limits))
    except msgspec.ValidationError as error:
        raise UsageError(f"limits: {error}") from None


def check_bounds(limits: Limits) -> Limits:
    """Limits no higher than those of the server."""
    for name in Limits.__struct_fields__:
        value, most = getattr(limits, name), getattr(MAX_LIMITS, name)
        if value is not None and value > most:
            raise UsageError(f"limit {name}={value:g}: at most {most:g} here")
    return limits
