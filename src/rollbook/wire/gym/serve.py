"""Serving an environment to NeMo Gym, from what was asked for until somebody says that it is enough."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
from aiohttp import web

from rollbook.collect.member import found, name_of
from rollbook.collect.planning import tool_format_of
from rollbook.collect.request import Request
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Sampling, Settings, ToolFormat
from rollbook.environments.registry import Loaded, of
from rollbook.environments.stage import Stage
from rollbook.errors import UsageError
from rollbook.models.model import Model
from rollbook.models.target import open_model, resolve_model
from rollbook.wire.gym.agent import AgentServer, Terms
from rollbook.wire.gym.cookie import slug
from rollbook.wire.gym.harness import HarnessEnvironment
from rollbook.wire.gym.head import Head
from rollbook.wire.gym.leases import LEASE_S, MOST
from rollbook.wire.gym.resources import ResourcesServer
from rollbook.wire.gym.rowfile import write_rows
from rollbook.wire.gym.staging import staged
from rollbook.wire.serving import serve

HARNESS = "harness:"

Say = Callable[[str], None]


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to serve, and how. `model` and what follows are for an agent."""

    env: str
    data: str | None = None
    template: str | None = None
    eval_type: str = ""
    harness_args: dict[str, JSON] = {}
    host: str = "127.0.0.1"
    port: int = 0
    data_dir: str | None = None
    head: bool = False
    role: Literal["resources", "agent"] = "resources"
    limits: Limits = Limits()
    settings: Settings = Settings()
    judge_name: str = ""
    lease_s: float = LEASE_S
    sessions: int = MOST
    model: list[str] = []
    model_name: str = ""
    sampling: Sampling = Sampling()
    tool_format: Literal["auto"] | ToolFormat = "auto"
    seed: int = 0


class Served(msgspec.Struct, frozen=True):
    """What is up: where, under which name, and the file of its rows if one was asked for."""

    url: str
    name: str
    data: str | None = None


async def serve_gym(asked: Serving, ready: Callable[[Served], None], say: Say) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told once requests are taken, `say` a line for all that fails."""
    loaded = load(asked)
    name = server_name(loaded, asked.eval_type)
    async with staged(loaded, asked.limits, asked.settings, asked.judge_name) as stage:
        data = None if asked.data_dir is None else str(Path(asked.data_dir) / f"{name}.jsonl")
        if data is not None:
            write_rows(loaded, Path(data), agent=f"{name}_agent")
        making = agent_app if asked.role == "agent" else resources_app
        async with making(asked, name, stage, say) as app:
            await serve(app, asked.host, asked.port, lambda url: ready(Served(url, name, data)))


def load(asked: Serving) -> Loaded:
    """The environment that was asked for; `harness:PACKAGE` takes its arguments from beside it."""
    if not asked.env.startswith(HARNESS) or "?" in asked.env:
        if asked.harness_args:
            raise UsageError(f"--harness-arg: {asked.env} is no harness:PACKAGE")
        return found(asked.env, asked.data, asked.template)
    package = asked.env.removeprefix(HARNESS)
    loaded = of(HarnessEnvironment(package, asked.eval_type, **asked.harness_args))
    return replace(loaded, spec=msgspec.structs.replace(loaded.spec, spec=asked.env))


def server_name(loaded: Loaded, eval_type: str = "") -> str:
    """What an environment's server is called in Gym's configurations; its rows have the same name."""
    return slug(eval_type or name_of(loaded))


@asynccontextmanager
async def resources_app(asked: Serving, name: str, stage: Stage, say: Say) -> AsyncIterator[web.Application]:
    """The application of a resources server."""
    if asked.model or asked.model_name:
        raise UsageError("--model: only an agent asks a model; add --as agent")
    app = ResourcesServer(name, stage, asked.limits, lease_s=asked.lease_s, most=asked.sessions, say=say).app()
    if asked.head:
        Head(name, "resources_servers").add_to(app)
    yield app


@asynccontextmanager
async def agent_app(asked: Serving, name: str, stage: Stage, say: Say) -> AsyncIterator[web.Application]:
    """The application of an agent, with its model open."""
    async with opened(asked, say) as model:
        request = Request(env=asked.env, out="", tool_format=asked.tool_format)
        at_once = asked.settings.concurrency
        terms = Terms(
            asked.sampling,
            asked.limits,
            tool_format_of(request, model.spec),
            asked.seed,
            asked.settings.attempts,
            at_once if isinstance(at_once, int) else Terms().concurrency,
        )
        app = AgentServer(name, stage, model, terms, say).app()
        if asked.head:
            Head(f"{name}_agent", "responses_api_agents").add_to(app)
        yield app


@asynccontextmanager
async def opened(asked: Serving, say: Say) -> AsyncIterator[Model]:
    """The model that was asked for."""
    spec, urls = resolve_model(asked.model, asked.model_name)
    model = open_model(spec, msgspec.structs.replace(asked.settings, urls=urls), say=say)
    try:
        await model.open()
        yield model
    finally:
        await model.close()
