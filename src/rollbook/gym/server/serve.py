"""Serve an environment to NeMo Gym, as a resources server or as an agent, until SIGINT or SIGTERM."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
from aiohttp import web

from rollbook.core import JSON, Limits, Sampling, Settings, ToolFormat
from rollbook.engine import Request, choose_tool_format, environment_name, load_environment
from rollbook.environments import EnvironmentRuntime, LoadedEnvironment, load_instance
from rollbook.errors import UsageError
from rollbook.gym.dataset import write_rows
from rollbook.gym.harness import HarnessEnvironment, open_runtime
from rollbook.gym.rows import AGENTS, RESOURCES
from rollbook.gym.server.agent import AgentServer, AgentSettings
from rollbook.gym.server.http_app import HeadRoutes, make_slug
from rollbook.gym.server.resources import ResourcesServer
from rollbook.models import Model, open_model, resolve_model
from rollbook.processes import IDLE_TIMEOUT_S, MAX_SESSIONS, serve_app

HARNESS_PREFIX = "harness:"

Log = Callable[[str], None]


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to serve, and how. `model` and the fields after it are for an agent."""

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
    lease_s: float = IDLE_TIMEOUT_S
    sessions: int = MAX_SESSIONS
    model: list[str] = []
    model_name: str = ""
    sampling: Sampling = Sampling()
    tool_format: Literal["auto"] | ToolFormat = "auto"
    seed: int = 0


class ServerInfo(msgspec.Struct, frozen=True):
    """The address and name of a running server, and the file of its rows if one was requested."""

    url: str
    name: str
    data: str | None = None


async def serve_gym(options: ServeOptions, ready: Callable[[ServerInfo], None], say: Log) -> None:
    """Serve until SIGINT or SIGTERM; call `ready` once requests are accepted, and `say` with one line per failure."""
    loaded = load_served_environment(options)
    name = make_server_name(loaded, options.eval_type)
    async with open_runtime(loaded, options.limits, options.settings, options.judge_name) as runtime:
        data = None if options.data_dir is None else str(Path(options.data_dir) / f"{name}.jsonl")
        if data is not None:
            write_rows(loaded, Path(data), agent=f"{name}_agent")
        open_app = open_agent_app if options.role == "agent" else open_resources_app
        async with open_app(options, name, runtime, say) as app:
            await serve_app(app, options.host, options.port, lambda url: ready(ServerInfo(url, name, data)))


def load_served_environment(options: ServeOptions) -> LoadedEnvironment:
    """Return the environment to serve; `harness:PACKAGE` without a query takes its arguments from `harness_args`."""
    if not options.env.startswith(HARNESS_PREFIX) or "?" in options.env:
        if options.harness_args:
            raise UsageError(f"--harness-arg: {options.env} is no harness:PACKAGE")
        return load_environment(options.env, options.data, options.template)
    package = options.env.removeprefix(HARNESS_PREFIX)
    loaded = load_instance(HarnessEnvironment(package, options.eval_type, **options.harness_args))
    return replace(loaded, spec=msgspec.structs.replace(loaded.spec, spec=options.env))


def make_server_name(loaded: LoadedEnvironment, eval_type: str = "") -> str:
    """Return the name of an environment's server in Gym's configurations; its rows have the same name."""
    return make_slug(eval_type or environment_name(loaded))


@asynccontextmanager
async def open_resources_app(
    options: ServeOptions, name: str, runtime: EnvironmentRuntime, say: Log
) -> AsyncIterator[web.Application]:
    """Open the application of a resources server."""
    if options.model or options.model_name:
        raise UsageError("--model: only an agent asks a model; add --as agent")
    app = ResourcesServer(
        name, runtime, options.limits, idle_timeout_s=options.lease_s, max_sessions=options.sessions, say=say
    ).make_app()
    if options.head:
        HeadRoutes(name, RESOURCES).add_to(app)
    yield app


@asynccontextmanager
async def open_agent_app(
    options: ServeOptions, name: str, runtime: EnvironmentRuntime, say: Log
) -> AsyncIterator[web.Application]:
    """Open the application of an agent, and its model."""
    async with open_agent_model(options, say) as model:
        request = Request(env=options.env, out="", tool_format=options.tool_format)
        concurrency = options.settings.concurrency
        settings = AgentSettings(
            options.sampling,
            options.limits,
            choose_tool_format(request, model.spec),
            options.seed,
            options.settings.attempts,
            concurrency if isinstance(concurrency, int) else AgentSettings().concurrency,
        )
        app = AgentServer(name, runtime, model, settings, say).make_app()
        if options.head:
            HeadRoutes(f"{name}_agent", AGENTS).add_to(app)
        yield app


@asynccontextmanager
async def open_agent_model(options: ServeOptions, say: Log) -> AsyncIterator[Model]:
    """Open the model of the options."""
    spec, urls = resolve_model(options.model, options.model_name)
    model = open_model(spec, msgspec.structs.replace(options.settings, urls=urls), say=say)
    try:
        await model.open()
        yield model
    finally:
        await model.close()


SERVE_OPTIONS_FD = "ROLLBOOK_SERVING_FD"
