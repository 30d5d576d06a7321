"""A gateway for everybody: rollouts are opened, asked in, read and ended over HTTP.

    POST   /rollout         {"name", "seed"}  ->  its name, and the base URLs to give to an agent
    GET    /rollout/NAME    the record so far
    DELETE /rollout/NAME    the record; nobody is answered under that name any more

These need the gateway's key, which agents are not given; what agents ask needs only the name of their rollout.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from rollbook.book.durable import write_whole
from rollbook.collect.asking import Asking
from rollbook.collect.player import Clock
from rollbook.core.json import JSON, pretty
from rollbook.core.manifest import Limits, Sampling
from rollbook.core.rollout import Rollout, seed_of
from rollbook.core.task import Task
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.model import Model
from rollbook.sandbox.twin import to_its_end
from rollbook.wire.gateway.chat import CHAT
from rollbook.wire.gateway.record import Record, record_of
from rollbook.wire.gateway.recorder import Recorder
from rollbook.wire.gateway.server import BASE, BODY_LIMIT, Gateway, new_name, read_object, said
from rollbook.wire.gateway.trouble import Busy, Ended, Trouble, trouble_of

MOST = 4096
SWEEP_S = 1.0
NAME_LIMIT = 200

Managing = Callable[[web.Request], Awaitable[JSON]]


class Terms(msgspec.Struct, frozen=True):
    """How rollouts are asked where their agents do not say, and what each may take."""

    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    seed: int = 0
    attempts: dict[str, int] = {}
    rollouts: int = MOST


class Opened(msgspec.Struct):
    """A rollout that somebody opened; after its deadline it is `late`, and only its record is left."""

    name: str
    seed: int
    recorder: Recorder
    began: float
    late: RolloutFailed | None = None


class Standalone:
    """Records rollouts against one model. Ended ones are also written to the folder `out`, where one is given."""

    def __init__(
        self, model: Model, terms: Terms, key: str, out: Path | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._model, self._terms, self._key, self._out, self._say = model, terms, key, out, say
        self._gateway = Gateway(lambda name: self._open[name].recorder, model.spec.name, say)
        self._open: dict[str, Opened] = {}
        self._count = 0

    def app(self) -> web.Application:
        """The application, for aiohttp to serve."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_post("/rollout", self._managing(self._begin))
        app.router.add_get(BASE, self._managing(self._show))
        app.router.add_delete(BASE, self._managing(self._end))
        self._gateway.add_to(app)
        app.router.add_route("*", "/{rest:.*}", _lost)
        app.cleanup_ctx.append(self._kept)
        return app

    def _managing(self, handler: Managing) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(errors="replace"), self._key.encode()):
                return said(401, {"error": {"message": "no key of this gateway, or a wrong one"}})
            try:
                return said(200, await handler(request))
            except (UsageError, Ended, Busy, TimeoutError, web.HTTPRequestEntityTooLarge) as error:
                trouble = trouble_of(error, BODY_LIMIT)
                return said(trouble.status, CHAT.error(trouble), trouble.headers)

        return answer

    async def _begin(self, request: web.Request) -> JSON:
        if len(self._open) >= self._terms.rollouts:
            raise Busy(f"{self._terms.rollouts} rollouts are open: end one with DELETE /rollout/NAME")
        asked = await read_object(request) if request.can_read_body else {}
        name, seed = asked.get("name", ""), asked.get("seed")
        if not isinstance(name, str) or len(name) > NAME_LIMIT:
            raise UsageError(f"name is no text of at most {NAME_LIMIT} characters")
        if not (seed is None or (isinstance(seed, int) and 0 <= seed < 2**31)):
            raise UsageError(f"seed is no whole number from 0 to {2**31 - 1}")
        rollout = self._add(name, seed)
        base = f"{request.scheme}://{request.host}/rollout/{rollout}"
        return {"rollout": rollout, "openai_base_url": f"{base}/v1", "anthropic_base_url": base}

    def _add(self, name: str, seed: int | None) -> str:
        rollout, terms = new_name(), self._terms
        self._count += 1
        task = Task(name or f"rollout-{self._count}", messages=[])
        seed = seed_of(terms.seed, task.id, self._count) if seed is None else seed
        blank = Rollout(task=task, sample=0, seed=seed, messages=[], turns=[])
        ask = Asking(self._model, terms.sampling, terms.limits, blank, rollout, Clock(), budgets=terms.attempts)
        self._open[rollout] = Opened(task.id, seed, Recorder(blank, ask), time.monotonic())
        return rollout

    async def _show(self, request: web.Request) -> JSON:
        name = request.match_info["rollout"]
        return self._record(name, self._found(name), over=False)

    async def _end(self, request: web.Request) -> JSON:
        name = request.match_info["rollout"]
        self._found(name)
        return await self._close(name)

    def _found(self, name: str) -> Opened:
        if name not in self._open:
            raise Ended
        return self._open[name]

    async def _close(self, name: str) -> Record:
        opened = self._open.pop(name)
        opened.recorder.close()
        record = self._record(name, opened, over=True)
        if self._out is not None:
            await self._keep(self._out / f"{name}.json", record)
        return record

    async def _keep(self, path: Path, record: Record) -> None:
        """Write it down; a full disk must not keep the record from whoever asked for it."""
        try:
            await to_its_end(partial(write_whole, path, pretty(record)))  # nobody else has it any more
        except OSError as error:
            self._say(f"{path}: {error.strerror}")

    def _record(self, name: str, opened: Opened, *, over: bool) -> Record:
        return record_of(name, opened.name, opened.seed, opened.recorder, opened.late, over or opened.late is not None)

    async def _kept(self, _: web.Application) -> AsyncIterator[None]:
        """For aiohttp: deadlines are kept while the server is up; what is open when it goes is ended."""
        sweeping = asyncio.create_task(self._sweep())
        yield
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        for name, opened in list(self._open.items()):
            opened.late = opened.late or RolloutFailed(
                "worker_lost", "rollout", "the gateway was stopped while it was open"
            )
            await self._close(name)

    async def _sweep(self) -> None:
        """Answer no more after a rollout's deadline; its record waits as long again for somebody to read it."""
        limit = self._terms.limits.rollout_s
        while True:
            await asyncio.sleep(min(SWEEP_S, limit / 4))
            now = time.monotonic()
            for name, opened in list(self._open.items()):
                if now - opened.began > 2 * limit:
                    if name in self._open:  # nobody ended it while another was being written down
                        await self._close(name)
                elif now - opened.began > limit and opened.late is None:
                    opened.recorder.close()
                    opened.late = RolloutFailed("rollout_timeout", "rollout", f"it took longer than {limit:g} s")


async def _lost(request: web.Request) -> web.Response:
    words = f"{request.method} {request.path} is not served here: open a rollout with POST /rollout, ask under its URL"
    return said(404, CHAT.error(Trouble(404, "not_found", words)))
