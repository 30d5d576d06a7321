"""The standalone gateway: rollouts are opened, called, read and ended over HTTP, until SIGINT or SIGTERM.

    POST   /rollout         {"name", "seed"}  ->  its name, and the base URLs to give to an agent
    GET    /rollout/NAME    the record so far
    DELETE /rollout/NAME    the record; the name is no longer served
    GET    /openapi.json    the description of these and of the agents' routes

These need the gateway's key, which agents do not get; agents' calls need only the name of their rollout.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from rollbook.book import write_atomically
from rollbook.core import JSON, Limits, Rollout, Sampling, Settings, Task, derive_seed, encode_pretty
from rollbook.engine import AttemptClock, ModelCaller
from rollbook.errors import RolloutFailed, UsageError
from rollbook.gateway.chat_completions import CHAT
from rollbook.gateway.protocol import ErrorReply, RolloutEnded, TooManyCalls, make_error_reply
from rollbook.gateway.recorder import Record, Recorder, make_record
from rollbook.gateway.server import BODY_LIMIT, BODY_TIMEOUT_S, ROLLOUT_PATH, GatewayServer, make_rollout_name
from rollbook.models import ChatModel, Model, open_model, require_continuing, resolve_model
from rollbook.processes import (
    ExpiringSessions,
    NoSession,
    Operation,
    RequestHandler,
    Schema,
    describe_operations,
    json_response,
    read_json_object,
    run_to_completion,
    serve_app,
)

MAX_ROLLOUTS = 4096
MAX_NAME_CHARS = 200

MANAGEMENT_ERRORS: dict[int, Schema] = dict.fromkeys((400, 401, 404, 408, 413, 429), CHAT.error_schema)
SECURITY: dict[str, JSON] = {"key": {"type": "http", "scheme": "bearer"}}
OPEN_REQUEST: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": MAX_NAME_CHARS},
        "group": {"type": "string", "maxLength": MAX_NAME_CHARS},
        "seed": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 2**31},
    },
}
ROLLOUT_URLS: dict[str, JSON] = {"type": "object", "required": ["rollout", "openai_base_url", "anthropic_base_url"]}
LINKS = {f"{method}_rollout_rollout": {"rollout": "rollout"} for method in ("get", "delete")}

ManagementHandler = Callable[[web.Request], Awaitable[JSON]]


class RolloutDefaults(msgspec.Struct, frozen=True):
    """Sampling where agents do not set it, and the limits of each rollout."""

    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    seed: int = 0
    attempts: dict[str, int] = {}
    rollouts: int = MAX_ROLLOUTS
    continue_tokens: bool = False


class OpenRollout(msgspec.Struct):
    """An open rollout; after its deadline it is `late`, and only its record is left."""

    rollout: str
    name: str
    seed: int
    recorder: Recorder
    deadline: asyncio.TimerHandle
    late: RolloutFailed | None = None
    record: Record | None = None
    """Made when it ends."""


class StandaloneGateway:
    """Records rollouts against one model. Ended ones are also written to the folder `out`, if given."""

    def __init__(
        self,
        model: Model,
        defaults: RolloutDefaults,
        key: str,
        out: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model, self._terms, self._key, self._out, self._say = model, defaults, key, out, say
        self._continues = require_continuing(model) if defaults.continue_tokens else None
        self._gateway = GatewayServer(lambda name: self._find_open(name).recorder, model.spec.name, say)
        # Using one does not make it live longer. After its deadline the record waits as long again for a reader.
        self._rollouts = ExpiringSessions[OpenRollout](
            self._close_rollout,
            not_found="no such rollout, or it has ended",
            idle_timeout_s=2 * defaults.limits.rollout_s,
            max_sessions=defaults.rollouts,
        )
        self._count = 0

    def make_app(self) -> web.Application:
        """Return the aiohttp application."""
        operations = [*self._list_management(), *self._gateway.list_operations()]
        app = self._gateway.make_app(
            describe_operations(
                "Rollbook gateway", operations, security=SECURITY, guard=self._check_key, errors=MANAGEMENT_ERRORS
            )
        )
        app.cleanup_ctx.append(self._close_all)
        return app

    def _list_management(self) -> list[Operation]:
        open_rollout = self._make_handler(self._open_rollout)
        read, end = self._make_handler(self._get_record), self._make_handler(self._end_rollout)
        errors = MANAGEMENT_ERRORS
        return [
            Operation(
                "POST",
                "/rollout",
                "open a rollout",
                open_rollout,
                ROLLOUT_URLS,
                errors,
                OPEN_REQUEST,
                False,
                links=LINKS,
            ),
            Operation("GET", ROLLOUT_PATH, "the record so far", read, Record, errors),
            Operation("DELETE", ROLLOUT_PATH, "end a rollout and return its record", end, Record, errors),
        ]

    def _check_key(self, handler: RequestHandler) -> RequestHandler:
        async def answer(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(errors="replace"), self._key.encode()):
                reply = ErrorReply(401, "unauthorized", "no key of this gateway, or a wrong one")
                return json_response(CHAT.error(reply), reply.status)
            return await handler(request)

        return answer

    def _make_handler(self, handler: ManagementHandler) -> RequestHandler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return json_response(await handler(request))
            except (UsageError, RolloutEnded, TooManyCalls, TimeoutError, web.HTTPRequestEntityTooLarge) as error:
                trouble = make_error_reply(error, BODY_LIMIT)
                return json_response(CHAT.error(trouble), trouble.status, trouble.headers)

        return self._check_key(answer)

    async def _open_rollout(self, request: web.Request) -> JSON:
        asked = await read_json_object(request, BODY_TIMEOUT_S) if request.can_read_body else {}
        name, group, seed = asked.get("name", ""), asked.get("group", ""), asked.get("seed")
        for field, text in (("name", name), ("group", group)):
            if not isinstance(text, str) or len(text) > MAX_NAME_CHARS:
                raise UsageError(f"{field} is not a text of at most {MAX_NAME_CHARS} characters")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31):
            raise UsageError(f"seed is not a whole number from 0 to {2**31 - 1}")
        if self._rollouts.full:
            raise TooManyCalls(f"{self._terms.rollouts} rollouts are open: end one with DELETE /rollout/NAME")
        rollout = make_rollout_name()
        await self._rollouts.open(rollout, partial(self._start_rollout, rollout, name, seed, group))
        base = f"{request.scheme}://{request.host}/rollout/{rollout}"
        return {"rollout": rollout, "openai_base_url": f"{base}/v1", "anthropic_base_url": base}

    async def _start_rollout(self, rollout: str, name: str, seed: int | None, group: str) -> OpenRollout:
        terms = self._terms
        self._count += 1
        task = Task(name or f"rollout-{self._count}", messages=[])
        seed = derive_seed(terms.seed, task.id, self._count) if seed is None else seed
        blank = Rollout(task=task, sample=0, seed=seed, messages=[], turns=[])
        ask = ModelCaller(
            self._model,
            terms.sampling,
            terms.limits,
            blank,
            rollout,
            AttemptClock(),
            budgets=terms.attempts,
            continues=self._continues,
            group=group,
        )
        recorder, limit_s = Recorder(blank, ask), terms.limits.rollout_s
        deadline = asyncio.get_running_loop().call_later(limit_s, self._end_late, rollout, limit_s)
        return OpenRollout(rollout, task.id, seed, recorder, deadline)

    def _end_late(self, rollout: str, limit_s: float) -> None:
        opened = self._rollouts.get(rollout)
        opened.recorder.close()
        opened.late = RolloutFailed("rollout_timeout", "rollout", f"it took longer than {limit_s:g} s")

    async def _get_record(self, request: web.Request) -> JSON:
        return self._make_record(self._find_open(request.match_info["rollout"]), over=False)

    async def _end_rollout(self, request: web.Request) -> JSON:
        opened = self._find_open(request.match_info["rollout"])
        await self._rollouts.end(opened.rollout)
        return opened.record

    def _find_open(self, rollout: str) -> OpenRollout:
        try:
            return self._rollouts.get(rollout)
        except NoSession:
            raise RolloutEnded from None

    async def _close_rollout(self, opened: OpenRollout) -> None:
        opened.deadline.cancel()
        opened.recorder.close()
        opened.record = self._make_record(opened, over=True)
        if self._out is not None:
            await self._write_record(self._out / f"{opened.rollout}.json", opened.record)

    async def _write_record(self, path: Path, record: Record) -> None:
        """Write a record; a full disk must not prevent the reply that contains it."""
        try:
            await run_to_completion(
                partial(write_atomically, path, encode_pretty(record))
            )  # no one else holds it any more
        except OSError as error:
            self._say(f"{path}: {error.strerror}")

    def _make_record(self, opened: OpenRollout, *, over: bool) -> Record:
        return make_record(
            opened.rollout, opened.name, opened.seed, opened.recorder, opened.late, over or opened.late is not None
        )

    async def _close_all(self, app: web.Application) -> AsyncIterator[None]:
        """For aiohttp's `cleanup_ctx`: what is open when the server stops fails."""
        expiring = self._rollouts.cleanup_context(app)
        await anext(expiring)
        yield
        for opened in self._rollouts:
            why = "the gateway was stopped while it was open"
            opened.late = opened.late or RolloutFailed("worker_lost", "rollout", why)
        await anext(expiring, None)


Say = Callable[[str], None]


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Upstream, address and defaults of a gateway."""

    upstream: list[str] = []
    model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    out: str | None = None
    settings: Settings = Settings()
    defaults: RolloutDefaults = RolloutDefaults()


async def serve_gateway(options: GatewayOptions, key: str, ready: Callable[[str], None], say: Say) -> None:
    """Serve until SIGINT or SIGTERM; call `ready` with the address, and `say` with one line per failure."""
    out = None if options.out is None else make_output_folder(options.out)
    async with open_upstream(options, say) as model:
        app = StandaloneGateway(model, options.defaults, key, out, say).make_app()
        await serve_app(app, options.host, options.port, ready, cancel_on_disconnect=True)


def make_output_folder(out: str) -> Path:
    """Create the folder of the records and return its path."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {out}: {error.strerror}") from None
    return Path(out)


@asynccontextmanager
async def open_upstream(options: GatewayOptions, say: Say) -> AsyncIterator[Model]:
    """Open the model; agents decide themselves which of its reasoning they send back."""
    spec, settings = resolve_model(options.upstream, options.model_name, options.settings)
    chat = spec.kind == "chat"
    model = ChatModel(spec, settings, send_reasoning=True, say=say) if chat else open_model(spec, settings, say=say)
    try:
        await model.open()
        yield model
    finally:
        await model.close()
