"""Serve an environment to NeMo Gym, as a resources server or as an agent, until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec
from aiohttp import web

from rollbook.core import JSON, Limits, Sampling, Settings, ToolFormat, decode, encode
from rollbook.engine import Request, choose_tool_format, environment_name, load_environment
from rollbook.environments import EnvironmentRuntime, LoadedEnvironment, load_instance, write_snapshot
from rollbook.errors import UsageError
from rollbook.gym.dataset import write_rows
from rollbook.gym.harness import HarnessEnvironment, open_runtime, temporary_folder
from rollbook.gym.rows import AGENTS, RESOURCES
from rollbook.gym.server.agent import AgentServer, AgentSettings
from rollbook.gym.server.http_app import HeadRoutes, make_slug
from rollbook.gym.server.resources import ResourcesServer
from rollbook.models import Model, open_model, resolve_model
from rollbook.processes import IDLE_TIMEOUT_S, MAX_SESSIONS, Operation, json_response, serve_app

HARNESS_PREFIX = "harness:"

Log = Callable[[str], None]


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to serve, and how. `model` and the fields after it are for an agent.

    `reuse`: where a server with the same identity is at the address already, stay for as long as it does.
    """

    env: str
    data: str | None = None
    template: str | None = None
    eval_type: str = ""
    harness_args: dict[str, JSON] = {}
    host: str = "127.0.0.1"
    port: int = 0
    data_dir: str | None = None
    reuse: bool = False
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
    identity = ServerIdentity(name, version("rollbook"), digest_server(options, loaded))
    if options.reuse and await stay_beside_server(options, identity, say):
        return
    async with open_runtime(loaded, options.limits, options.settings, options.judge_name) as runtime:
        data = None if options.data_dir is None else str(Path(options.data_dir) / f"{name}.jsonl")
        if data is not None:
            write_rows(loaded, Path(data), agent=f"{name}_agent")
        open_app = open_agent_app if options.role == "agent" else open_resources_app
        async with open_app(options, name, runtime, say, [make_identity_operation(identity)]) as app:
            await serve_app(app, options.host, options.port, lambda url: ready(ServerInfo(url, name, data)))


IDENTITY_PATH = "/rollbook"
IDENTITY_TIMEOUT_S = 5.0
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ServerIdentity(msgspec.Struct, frozen=True):
    """What a server says of itself at IDENTITY_PATH. Two servers with equal digests give equal verdicts."""

    name: str
    version: str
    digest: str


def make_identity_operation(identity: ServerIdentity) -> Operation:
    """Return the route at which a server says what it serves."""

    async def answer(_: web.Request) -> web.Response:
        return json_response(identity)

    return Operation("GET", IDENTITY_PATH, "what is served here", answer, ServerIdentity, name="identity")


def digest_server(options: ServeOptions, loaded: LoadedEnvironment) -> str:
    """Return a digest of all that a server's verdicts depend on: source, arguments, files of rows, Python, version."""
    with temporary_folder() as folder:
        source = write_snapshot(loaded, folder / "source")
    files = [Path(name) for name in (options.data, options.template) if name and Path(name).is_file()]
    parts = [
        (version("rollbook"), sys.prefix, str(Path.cwd())),  # relative paths in arguments depend on the folder
        (source.target, source.args, source.digest),
        msgspec.structs.replace(options, host="", port=0, data_dir=None, reuse=False),
        list(map(_digest_file, files)),
    ]
    return hashlib.sha256(encode(parts)).hexdigest()


def _digest_file(path: Path) -> str:
    with open(path, "rb") as file:  # rows can be many gigabytes
        return hashlib.file_digest(file, "sha256").hexdigest()


async def stay_beside_server(options: ServeOptions, identity: ServerIdentity, say: Log) -> bool:
    """Wait while the same server is at the address; False if no server is there, UsageError if another one is."""
    host = _WILDCARD_HOSTS.get(options.host, options.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{options.port}"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(IDENTITY_TIMEOUT_S)) as http:
        try:
            found = await read_identity(http, url)
        except TimeoutError:
            found = "one that does not answer"
        if found is None:
            return False
        if found != identity:
            other = f"{found.name}, {found.digest[:12]}" if isinstance(found, ServerIdentity) else found
            raise UsageError(
                f"{url}: another server is there ({other}), not {identity.name}, {identity.digest[:12]}: end it, or "
                "write the configuration again with another --port"
            )
        say(f"{url}: {identity.name} is served there already")
        while found == identity:
            await asyncio.sleep(IDENTITY_TIMEOUT_S)
            with suppress(TimeoutError):  # it may be busy
                found = await read_identity(http, url)
    return True


async def read_identity(http: aiohttp.ClientSession, url: str) -> ServerIdentity | str | None:
    """Return the identity of the server at an address, or what else is there; None if no server listens."""
    try:
        async with http.get(f"{url}{IDENTITY_PATH}", allow_redirects=False) as reply:
            return msgspec.convert(decode(await reply.read()), ServerIdentity)
    except aiohttp.ClientConnectorError:
        return None
    except (aiohttp.ClientError, msgspec.MsgspecError, UnicodeDecodeError):
        return "an unidentified one"


def load_served_environment(options: ServeOptions) -> LoadedEnvironment:
    """Return the environment to serve; `harness:PACKAGE` without a query takes its arguments from `harness_args`."""
    if not options.env.startswith(HARNESS_PREFIX) or "?" in options.env:
        if options.harness_args:
            raise UsageError(f"--harness-arg: {options.env} is not harness:PACKAGE")
        return load_environment(options.env, options.data, options.template)
    package = options.env.removeprefix(HARNESS_PREFIX)
    loaded = load_instance(HarnessEnvironment(package, options.eval_type, **options.harness_args))
    return replace(loaded, spec=msgspec.structs.replace(loaded.spec, spec=options.env))


def make_server_name(loaded: LoadedEnvironment, eval_type: str = "") -> str:
    """Return the name of an environment's server in Gym's configurations; its rows have the same name."""
    return make_slug(eval_type or environment_name(loaded))


@asynccontextmanager
async def open_resources_app(
    options: ServeOptions, name: str, runtime: EnvironmentRuntime, say: Log, extra: Sequence[Operation] = ()
) -> AsyncIterator[web.Application]:
    """Open the application of a resources server."""
    if options.model or options.model_name:
        raise UsageError("--model: only an agent calls a model; add --as agent")
    server = ResourcesServer(
        name, runtime, options.limits, idle_timeout_s=options.lease_s, max_sessions=options.sessions, say=say
    )
    head = HeadRoutes(name, RESOURCES).list_operations() if options.head else []
    yield server.make_app([*extra, *head])


@asynccontextmanager
async def open_agent_app(
    options: ServeOptions, name: str, runtime: EnvironmentRuntime, say: Log, extra: Sequence[Operation] = ()
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
        head = HeadRoutes(f"{name}_agent", AGENTS).list_operations() if options.head else []
        yield AgentServer(name, runtime, model, settings, say).make_app([*extra, *head])


@asynccontextmanager
async def open_agent_model(options: ServeOptions, say: Log) -> AsyncIterator[Model]:
    """Open the model of the options."""
    spec, settings = resolve_model(options.model, options.model_name, options.settings)
    model = open_model(spec, settings, say=say)
    try:
        await model.open()
        yield model
    finally:
        await model.close()


SERVE_OPTIONS_FD = "ROLLBOOK_SERVING_FD"
