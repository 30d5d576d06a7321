"""The servers of one configuration of a NeMo Gym checkout: started together, restarted when one dies, stopped.

Every resources server of the configuration is started, and every model server that one of those calls (for a judge, for
example). Its agents are not: our own agents run the rollouts, with the model of the run. A server must be ready by a
deadline and ends when this process does.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import yaml

from rollbook.core import JSON, Task
from rollbook.errors import ChildFailed, RolloutFailed, UsageError
from rollbook.gym.client.config import (
    INCLUDES,
    RAY_STUB_FOLDER,
    BenchmarkPrompt,
    Config,
    GymCheckout,
    ServerBlock,
    compose_config,
    find_config,
    read_benchmark_prompt,
    read_blocks,
)
from rollbook.gym.client.http_client import ConnectedServer, GymClient
from rollbook.gym.dataset import read_agent_name
from rollbook.gym.rows import AGENT_REF, AGENTS, MODELS, RESOURCES, make_agent_ref
from rollbook.models import CREATE_PARAMS
from rollbook.processes import Child, module_argv

LOCAL_HOST = "127.0.0.1"
READY_TIMEOUT_S = 110.0
"""The time until a server must answer; importing Gym alone takes many seconds."""

MAX_RESTARTS = 3
STOP_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.1
ADDRESS_IN_USE = "address already in use"
EXEC_TO_LOG = 'exec "$0" "$@" </dev/null >&2'
"""The keeper's standard streams are a channel to its command; a server only writes its log."""


class PortTaken(Exception):
    """Another program has the port."""


class ServerCommand(msgspec.Struct, frozen=True):
    """How to start a server: Python, entry file, and further environment variables."""

    python: Path
    entry: Path
    variables: Mapping[str, str]


class ServerInstance:
    """A server by its name in the configuration. It keeps its client through restarts."""

    def __init__(self, name: str, client: GymClient) -> None:
        self.name, self.client = name, client
        self._child: Child | None = None
        self._keeper_socket: socket.socket | None = None
        self._command: ServerCommand | None = None
        self._restarts_left = MAX_RESTARTS
        self._settled = asyncio.Event()
        self._restart_task: asyncio.Task[None] | None = None
        self._final_error = ""

    @property
    def pid(self) -> int:
        """The process id of the server's keeper."""
        assert self._child
        return self._child.pid

    async def start(self, program: ServerCommand) -> None:
        """Start it and wait until it answers; ChildFailed with the end of its log, PortTaken if it cannot listen."""
        self._command = program
        environ = {**os.environ, **program.variables}
        self._keeper_socket, theirs = socket.socketpair()
        names = ",".join(name for name in environ if "," not in name)
        command = ("/bin/sh", "-c", EXEC_TO_LOG, str(program.python), program.entry.name)
        argv = module_argv("rollbook.processes.supervisor", str(theirs.fileno()), names, *command)
        with theirs:
            self._child = Child(argv, env=environ, cwd=program.entry.parent, pass_fds=(theirs.fileno(),))
        await self._wait_until_ready(self._child)
        self._settled.set()
        self._child.call_on_exit(asyncio.get_running_loop(), self._on_exit)

    async def _wait_until_ready(self, child: Child) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not await self._is_answering():
                    if child.returncode is not None:
                        raise self._early_exit_error(child)
                    await asyncio.sleep(POLL_INTERVAL_S)
        except TimeoutError:
            raise ChildFailed(f"{self.name} did not answer within {READY_TIMEOUT_S:g} s", child.log_tail()) from None
        if child.returncode is not None:
            raise self._early_exit_error(child)

    async def _is_answering(self) -> bool:
        """Whether our own server answers: Gym's servers put their name into their cookies."""
        cookies: dict[str, str] = {}
        try:
            await self.client.get("/", cookies=cookies)
        except RolloutFailed:
            return False
        if any("___" in name and not name.endswith(f"___{self.name}") for name in cookies):
            raise PortTaken(self.client.base)
        return True

    def _early_exit_error(self, child: Child) -> Exception:
        tail = child.log_tail()
        if ADDRESS_IN_USE in tail.lower():
            return PortTaken(self.client.base)
        return ChildFailed(f"{self.name} ended (exit {child.returncode}) before it answered", tail)

    def _on_exit(self) -> None:
        """Handle the server's death: its sessions are lost, and it is restarted up to MAX_RESTARTS times."""
        self._settled.clear()
        self.client.replace_server(self.client.base)
        if self._final_error:
            return
        assert self._child
        if not self._restarts_left:
            last = self._child.last_log_line()[:200] or "it printed nothing"
            self._final_error = f"{self.name} ended {MAX_RESTARTS + 1} times; last: {last}"
            self._settled.set()
            return
        self._restarts_left -= 1
        self._restart_task = asyncio.create_task(self._restart(), name=f"restart {self.name}")

    async def _restart(self) -> None:
        assert self._command
        self._release_keeper()
        try:
            await self.start(self._command)
        except (ChildFailed, PortTaken) as error:
            self._final_error = f"{self.name} ended and could not be started again: {error}"
            self._settled.set()

    async def wait_until_up(self) -> None:
        """Wait until it answers; RolloutFailed if it never will."""
        await self._settled.wait()
        if self._final_error:
            raise RolloutFailed("environment_error", self.name, self._final_error)

    async def stop(self) -> None:
        """End it with everything it started."""
        self._final_error = f"{self.name} was stopped with the run"
        if self._restart_task:
            self._restart_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._restart_task
        self._release_keeper()
        if self._child:
            # The keeper ends it, so that being killed during this call leaves nothing behind.
            with suppress(TimeoutError):
                await self._child.wait(STOP_TIMEOUT_S)
            await self._child.kill_tree()

    def _release_keeper(self) -> None:
        """Close our end of the keeper's socket, and then the keeper stops the server."""
        if self._keeper_socket is not None:
            self._keeper_socket.close()
            self._keeper_socket = None


def reserve_port() -> socket.socket:
    """Return a port that no program takes by accident until a server listens on it: bound, but not listened on."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((LOCAL_HOST, 0))
    return reserved


START_ATTEMPTS = 5
"""How often all servers are started, each time on other ports, when a port was taken."""

API_KEY_FROM_ENVIRONMENT = "${oc.env:OPENAI_API_KEY,none}"
_SECRET_NAME = re.compile(r"(.*[._])?(key|token|secret|password)", re.IGNORECASE)

PROMPT_CONFIG = "prompt_config"
AGENT_MAX_STEPS = {"simple_agent": None, "tool_simulation_agent": 1}
"""Gym's agents that ours behaves like, and how often each asks the model if its configuration does not say."""


class ServerFleet:
    """The servers of `gym:NAME`. `overrides` change the configuration by dotted names; `config_paths` adds files to it.

    Where there are several resources servers, each row is for the one that its agent (`agent_ref`) belongs to.
    """

    def __init__(self, name: str, overrides: Mapping[str, JSON]) -> None:
        if not name:
            raise UsageError("gym: which configuration? write gym:path/to/config.yaml")
        check_overrides(overrides)
        path = find_config(name)
        self._checkout = GymCheckout(path)
        self._config = compose_config(path, self._checkout.roots, overrides)
        known = {block.name: block for block in read_blocks(self._config)}
        self._resources = [name for name, block in known.items() if block.kind == RESOURCES]
        self._required = {name: known[name] for name in list_required_servers(known)}
        self._agents = {name: block for name, block in known.items() if block.kind == AGENTS}
        if not self._resources:
            raise UsageError(f"{path}: it names no resources server ({RESOURCES})")
        self.notes = [  # what needs it will fail
            f"{path}: {who} calls {whom}, which is not in it"
            for who, block in self._required.items()
            for whom in block.references
            if whom not in known
        ]
        self._prompts: dict[str, BenchmarkPrompt] = {}
        self._instances: dict[str, ServerInstance] = {}
        self._servers: dict[str, ConnectedServer] = {}

    def prepare_row(self, row: dict[str, JSON]) -> dict[str, JSON]:
        """Return a row with a prompt: one that has none gets that of its benchmark, as in Gym (`prompt_config`)."""
        params = row.get(CREATE_PARAMS) or {}
        if not isinstance(params, dict) or params.get("input"):
            return row
        reference = row.get(AGENT_REF)
        name = self._find_prompt(reference.get("name") if isinstance(reference, dict) else None)
        if name is None:
            return row
        if name not in self._prompts:
            self._prompts[name] = read_benchmark_prompt(name, self._checkout.roots)
        return {**row, CREATE_PARAMS: {**params, "input": self._prompts[name].fill(row)}}

    def _find_prompt(self, agent: JSON) -> str | None:
        """Return the template of the configuration, or the one that the datasets of a row's agent name."""
        blocks = [self._agents[agent]] if agent in self._agents else list(self._agents.values())
        datasets = [dataset for block in blocks for dataset in block.settings.get("datasets") or []]
        names = {dataset[PROMPT_CONFIG] for dataset in datasets if dataset.get(PROMPT_CONFIG)}
        if own := self._config.get(PROMPT_CONFIG):
            names = {own}
        if len(names) > 1:
            raise UsageError(f"no input, and several {PROMPT_CONFIG}: choose one with ?{PROMPT_CONFIG}={min(names)}")
        return next(iter(names), None)

    def check(self, task: Task) -> None:
        """Refuse a row that belongs to none of the servers; give the task its agent's name and limit of steps."""
        server = self._server_name_for(task)
        agent = self._agent_for(task, server)
        self._name_agent(task, server)
        if agent is None:
            return
        if agent.implementation not in AGENT_MAX_STEPS:
            reason = f"{agent.name} is a {agent.implementation}, which Rollbook does not start"
            note = f"{reason}: the built-in agent runs its rows, as simple_agent"
            self.notes += [note] if note not in self.notes else []
        steps = AGENT_MAX_STEPS.get(agent.implementation) or agent.settings.get("max_steps")
        task.max_turns = steps if isinstance(steps, int) and steps > 0 else None

    def _agent_for(self, task: Task, server: str) -> ServerBlock | None:
        """Return the agent that would run a row in Gym: the one it names, else the only one of its server."""
        named = self._agents.get(read_agent_name(task) or "")
        candidates = self._agents_of(server)
        return named or (candidates[0] if len(candidates) == 1 else None)

    def _agents_of(self, server: str) -> list[ServerBlock]:
        return [block for block in self._agents.values() if server in block.references]

    def _name_agent(self, task: Task, server: str) -> None:
        """Name an agent in a row that names none: Gym's tools find the server of a rollout by its agent."""
        agents = self._agents_of(server)
        if not agents or read_agent_name(task) is not None:
            return
        task.fields = {**task.fields, **make_agent_ref(agents[0].name)}
        if len(agents) > 1:
            names = ", ".join(agent.name for agent in agents)
            note = (
                f"rows name no agent, and {server} has several ({names}): they are stored as rows of {agents[0].name}"
            )
            self.notes += [note] if note not in self.notes else []

    def _server_name_for(self, task: Task) -> str:
        if len(self._resources) == 1:
            return self._resources[0]
        agent = read_agent_name(task)
        refers = self._agents[agent].references if agent in self._agents else []
        server = next((name for name in refers if name in self._resources), None)
        if server is None:
            known = ", ".join(self._agents) or "none"
            problem = f"agent_ref {agent}" if agent else "no agent_ref"
            raise UsageError(f"{problem}: with several servers, a row must name the agent of one; known: {known}")
        return server

    def server_for(self, task: Task) -> ConnectedServer:
        """Return the server of a task's row."""
        return self._servers[self._server_name_for(task)]

    async def wait_until_up(self, task: Task, outage_s: float) -> None:
        """Wait for a server that is being restarted: it comes back by a deadline, or not at all."""
        await self._instances[self._server_name_for(task)].wait_until_up()

    async def start(self, route: str) -> None:
        """Start the required servers and wait until all of them answer."""
        for _ in range(START_ATTEMPTS):
            try:
                await self._start_all()
                break
            except PortTaken:
                await self.stop()
            except ChildFailed as error:
                await self.stop()
                raise UsageError(_describe_failure(error)) from None
        else:
            raise UsageError(f"{START_ATTEMPTS} times in a row, another program took the port of a server")
        for name in self._resources:
            self._servers[name] = ConnectedServer(self._instances[name].client)
            await self._servers[name].connect(route)

    async def _start_all(self) -> None:
        reserved = {name: reserve_port() for name in self._required}
        try:
            ports: dict[str, int] = {name: port.getsockname()[1] for name, port in reserved.items()}
            config = self._make_server_config(ports)
            for name, port in ports.items():
                client = GymClient(f"http://{LOCAL_HOST}:{port}")
                await client.open()
                self._instances[name] = ServerInstance(name, client)
            async with asyncio.TaskGroup() as group:
                for name, instance in self._instances.items():
                    group.create_task(instance.start(self._make_command(self._required[name], config)))
        except* (PortTaken, ChildFailed, UsageError) as several:
            raise several.exceptions[0] from None
        finally:
            for socket_ in reserved.values():
                socket_.close()  # the port belongs to the server that now listens on it

    def _make_server_config(self, ports: Mapping[str, int]) -> Config:
        """Return the configuration for the servers: their own blocks with addresses, and no agents."""
        servers = {block.name for block in read_blocks(self._config)}
        config = {name: value for name, value in self._config.items() if name not in servers}
        for name, block in self._required.items():
            config[name] = {
                block.kind: {block.implementation: {**block.settings, "host": LOCAL_HOST, "port": ports[name]}}
            }
        home = self._checkout.home
        defaults: Config = {"results_dir": str(home / "results"), "cache_dir": str(home / "cache")}
        defaults |= {"policy_api_key": API_KEY_FROM_ENVIRONMENT, "head_server": {"host": LOCAL_HOST, "port": 11000}}
        return {**defaults, **config, "dry_run": False}

    def _make_command(self, block: ServerBlock, config: Config) -> ServerCommand:
        checkout = self._checkout
        paths = [*([] if checkout.needs_ray(block) else [str(RAY_STUB_FOLDER)]), str(checkout.home)]
        if os.environ.get("PYTHONPATH"):
            paths.append(os.environ["PYTHONPATH"])
        python = checkout.python(block)
        variables = {
            "NEMO_GYM_CONFIG_DICT": yaml.safe_dump(config, sort_keys=False),
            "NEMO_GYM_CONFIG_PATH": block.name,
            "PATH": os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath))),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            # A server that uses Ray must not join another user's cluster on this machine.
            "RAY_ADDRESS": os.environ.get("RAY_ADDRESS", "local"),
        }
        return ServerCommand(python, checkout.entry(block), variables)

    async def stop(self) -> None:
        """End all servers."""
        instances, self._instances, self._servers = self._instances, {}, {}
        await asyncio.gather(*(instance.stop() for instance in instances.values()))
        await asyncio.gather(*(instance.client.close() for instance in instances.values()))


def list_required_servers(known: Mapping[str, ServerBlock]) -> list[str]:
    """Return the servers to start: resources servers, and the servers that those call, if configured."""
    names = [caller for caller, block in known.items() if block.kind == RESOURCES]
    for caller in names:
        more = (
            other for other in known[caller].references if other in known and known[other].kind in (RESOURCES, MODELS)
        )
        names += [other for other in more if other not in names]
    return names


def check_overrides(overrides: Mapping[str, JSON]) -> None:
    """Refuse secrets: the spec is written into the run directory."""
    for name in overrides:
        if _SECRET_NAME.fullmatch(name):
            raise UsageError(f"{name}=...: secrets must not be in a run directory; write ${{oc.env:NAME}} in the file")
    if not isinstance(overrides.get(INCLUDES, []), list):
        raise UsageError(f'{INCLUDES}: write a list of files, {INCLUDES}=["a.yaml"]')


def _describe_failure(error: ChildFailed) -> str:
    lines = [line.strip() for line in error.tail.splitlines() if line.strip()]
    return f"{error.message}: {' | '.join(lines[-3:])[-600:]}" if lines else error.message
