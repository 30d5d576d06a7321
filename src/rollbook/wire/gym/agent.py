"""An environment with an agent of ours and a model, as an agent server of NeMo Gym.

    POST /run                the row  ->  the row again, with the response and the reward
    POST /v1/responses       what a row asks of the model  ->  the response: a whole rollout, not scored
    POST /aggregate_metrics  verified rows  ->  Gym's statistics over them

A rollout that failed is no HTTP error: one of those ends Gym's whole collection. It is a row without a reward that
Gym's collector puts among the failures, and tries again on resume where that may help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from rollbook.book.ledger import Past
from rollbook.collect.job import Job
from rollbook.collect.player import Player
from rollbook.collect.retry import delay_s, note_try
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Sampling, ToolFormat
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.environments.stage import Stage
from rollbook.errors import RolloutFailed, Stopped
from rollbook.models.model import Model
from rollbook.wire.gym.answering import gym_app, read_object, said
from rollbook.wire.gym.cookie import Cookies
from rollbook.wire.gym.metrics import aggregate
from rollbook.wire.gym.openapi import openapi
from rollbook.wire.gym.params import KEY, Params, read_params
from rollbook.wire.gym.resources import verified_rows
from rollbook.wire.gym.response import rollout_response
from rollbook.wire.gym.row import id_of, sample_of, task_of
from rollbook.wire.gym.verdict import failed, scored

GETS = {"/": "alive?", "/health": "alive?"}
POSTS = {
    "/run": "play a row, and score it",
    "/v1/responses": "play what a row asks",
    "/aggregate_metrics": "statistics over verified rows",
}
PREFIXES = ("", "/ng-rollout/{rollout}", "/ng-rollout/{rollout}/training-token-capture")
"""Gym's own agents are also asked under these, which say whose call it is; here they change nothing."""


class Terms(msgspec.Struct, frozen=True):
    """How rollouts are played unless a row says otherwise."""

    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    tool_format: ToolFormat = "native"
    seed: int = 0
    attempts: dict[str, int] = {}
    concurrency: int = 64


class AgentServer:
    """Plays rows against one model. `say` is told, a line at a time, of what has failed."""

    def __init__(
        self, name: str, stage: Stage, model: Model, terms: Terms, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._name, self._stage, self._model, self._terms, self._say = name, stage, model, terms, say
        self._places = asyncio.Semaphore(terms.concurrency)

    def app(self) -> web.Application:
        """The application, for aiohttp to serve."""
        app = gym_app(Cookies(f"{self._name}_agent"), self._say)
        for path in ("/", "/health"):
            app.router.add_get(path, self._health)
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_post("/run", self._run)
        for prefix in PREFIXES:
            app.router.add_post(f"{prefix}/v1/responses", self._respond)
        app.router.add_post("/aggregate_metrics", self._aggregate)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return said({"status": "ok"})

    async def _openapi(self, _: web.Request) -> web.Response:
        return said(openapi(self._name, POSTS, GETS))

    async def _run(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        task, params = task_of(body, self._name), read_params(body.get(KEY))
        try:
            rollout = await self._play(task, sample_of(body), params, verify=True)
        except Stopped as error:
            self._say(f"/run: {error}")
            return said(failed(body, "model_unavailable", str(error)))
        answer = {**body, "response": self._response(rollout)}
        if rollout.score is None:
            assert rollout.failure
            self._say(f"/run: {task.id}: {rollout.failure.kind} in {rollout.failure.where}: {rollout.failure.message}")
            return said(failed(answer, rollout.failure.kind, rollout.failure.message))
        return said(scored(answer, rollout.score, rollout.outcome))

    async def _respond(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        params = read_params(body, "body")
        task = Task(id_of({KEY: body}), messages=params.messages, env=self._name)
        rollout = await self._play(task, 0, params, verify=False)
        if rollout.failure:
            raise RolloutFailed(rollout.failure.kind, rollout.failure.where, rollout.failure.message)
        return said(self._response(rollout))

    async def _aggregate(self, request: web.Request) -> web.Response:
        return said(aggregate(verified_rows(await read_object(request))))

    async def _play(self, task: Task, sample: int, params: Params, *, verify: bool) -> Rollout:
        """Attempt after attempt, until it is scored or its kind of failure is out of budget."""
        player, job = self._player(params), Job(task, sample, Past())
        async with self._places:
            while True:
                rollout, error = await player.play(job, 1, verify=verify)
                if error is None or note_try(job.past, error.kind, self._terms.attempts):
                    return rollout
                await asyncio.sleep(delay_s(error, job.past))

    def _player(self, params: Params) -> Player:
        terms = self._terms
        sampling = params.sampling(terms.sampling)
        if params.seed is not None:
            sampling = msgspec.structs.replace(sampling, extra={**sampling.extra, "seed": params.seed})
        return Player(
            self._model,
            {self._name: self._stage},
            None,
            sampling,
            terms.limits,
            terms.seed,
            tool_format=terms.tool_format,
            budgets=terms.attempts,
        )

    def _response(self, rollout: Rollout) -> Mapping[str, JSON]:
        return rollout_response(rollout, self._model.spec.name, self._stage.spec.tools)
