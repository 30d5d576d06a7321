"""An environment with an agent of ours and a model, as an agent server of NeMo Gym.

    POST /run                the row  ->  the row again, with the response and the reward
    POST /v1/responses       what a row asks of the model  ->  the response: a whole rollout, not scored
    POST /aggregate_metrics  verified rows  ->  Gym's statistics over them

A failed rollout is not an HTTP error: an HTTP error ends Gym's whole collection. It is a row without a reward that
Gym's collector puts among the failures, and retries on resume where that may help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from aiohttp import web

from rollbook.book import KeyHistory
from rollbook.core import JSON, Limits, Rollout, Sampling, Task, ToolFormat
from rollbook.engine import RolloutJob, RolloutRunner, run_until_final
from rollbook.environments import EnvironmentRuntime
from rollbook.errors import RolloutFailed, Stopped
from rollbook.gym.responses import make_rollout_response
from rollbook.gym.rows import make_failed_row, make_scored_row, read_row_id, read_sample_index, read_task
from rollbook.gym.server.http_app import CREATE_PARAMS_SCHEMA, RESPONSE, ROW, make_gym_app, make_post
from rollbook.models import CREATE_PARAMS, CreateParams, Model, read_create_params
from rollbook.processes import Operation, json_response, read_json_object

ROUTE_PREFIXES = ("", "/ng-rollout/{rollout}", "/ng-rollout/{rollout}/training-token-capture")
"""Gym's own agents also answer under these prefixes, which name the rollout of a call; here they change nothing."""


class AgentSettings(msgspec.Struct, frozen=True):
    """How rollouts are run unless a row says otherwise."""

    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    tool_format: ToolFormat = "native"
    seed: int = 0
    attempts: dict[str, int] = {}
    concurrency: int = 64


class AgentServer:
    """Run rows against one model. `say` gets one line for each failure."""

    def __init__(
        self,
        name: str,
        runtime: EnvironmentRuntime,
        model: Model,
        settings: AgentSettings,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._name, self._runtime, self._model, self._settings, self._say = name, runtime, model, settings, say
        self._slots = asyncio.Semaphore(settings.concurrency)

    def make_app(self, extra: Sequence[Operation] = ()) -> web.Application:
        """Return the aiohttp application, with `extra` routes."""
        respond = "run a row without scoring it"
        calls = [
            make_post(f"{prefix}/v1/responses", respond, self._respond, CREATE_PARAMS_SCHEMA, RESPONSE)
            for prefix in ROUTE_PREFIXES
        ]
        run = make_post("/run", "run a row and score it", self._run, ROW, ROW)
        return make_gym_app(f"{self._name}_agent", self._say, [run, *calls, *extra])

    async def _run(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        task, params = read_task(body, self._name), read_create_params(body.get(CREATE_PARAMS))
        try:
            rollout = await self._run_rollout(task, read_sample_index(body), params, verify=True)
        except Stopped as error:
            self._say(f"/run: {error}")
            return json_response(make_failed_row(body, "model_unavailable", str(error)))
        answer = {**body, "response": self._make_response(rollout)}
        if rollout.score is None:
            assert rollout.failure
            self._say(f"/run: {task.id}: {rollout.failure.kind} in {rollout.failure.where}: {rollout.failure.message}")
            return json_response(make_failed_row(answer, rollout.failure.kind, rollout.failure.message))
        return json_response(make_scored_row(answer, rollout.score, rollout.outcome))

    async def _respond(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        params = read_create_params(body, "body")
        task = Task(read_row_id({CREATE_PARAMS: body}), messages=params.messages, env=self._name)
        rollout = await self._run_rollout(task, 0, params, verify=False)
        if rollout.failure:
            raise RolloutFailed(rollout.failure.kind, rollout.failure.where, rollout.failure.message)
        return json_response(self._make_response(rollout))

    async def _run_rollout(self, task: Task, sample: int, params: CreateParams, *, verify: bool) -> Rollout:
        """Run attempts until one is scored, or until the budget of its failure kind is used up."""
        runner, job = self._make_runner(params), RolloutJob(task, sample, KeyHistory())
        async with self._slots:
            run_attempt = partial(runner.run_attempt, job, 1, verify=verify)
            return await run_until_final(run_attempt, job.past, self._settings.attempts)

    def _make_runner(self, params: CreateParams) -> RolloutRunner:
        settings = self._settings
        sampling = params.sampling(settings.sampling)
        if params.seed is not None:
            sampling = sampling.override({"seed": params.seed})
        return RolloutRunner(
            self._model,
            {self._name: self._runtime},
            None,
            sampling,
            settings.limits,
            settings.seed,
            tool_format=settings.tool_format,
            budgets=settings.attempts,
        )

    def _make_response(self, rollout: Rollout) -> Mapping[str, JSON]:
        # Gym 0.4 refuses null for uncounted tokens; its own agents send 0.
        return make_rollout_response(rollout, self._model.spec.name, self._runtime.spec.tools, uncounted=0)
