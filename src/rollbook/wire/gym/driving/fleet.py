"""The servers of one configuration of a NeMo Gym checkout: started together, started again when one dies, ended.

Every resources server of the configuration is started, and every model server that one of those calls (for a judge,
say). Its agents are not: our own play, with the model of the run.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping

import yaml

from rollbook.core.json import JSON
from rollbook.core.task import Task
from rollbook.errors import ChildFailed, UsageError
from rollbook.wire.gym.driving.checkout import NO_RAY, Checkout, find_config
from rollbook.wire.gym.driving.client import Client
from rollbook.wire.gym.driving.composition import AGENTS, INCLUDES, MODELS, RESOURCES, Block, Config, blocks, compose
from rollbook.wire.gym.driving.dataset import agent_of
from rollbook.wire.gym.driving.instance import HOST, HeldPort, Instance, PortTaken, Program
from rollbook.wire.gym.driving.served import Served

TRIES = 5
"""How often all are started on other ports when one was taken."""

KEY_FROM_ENVIRONMENT = "${oc.env:OPENAI_API_KEY,none}"
_SECRET = re.compile(r"(.*[._])?(key|token|secret|password)", re.IGNORECASE)

STEPS = {"simple_agent": None, "tool_simulation_agent": 1}
"""Agents of Gym's that ours plays like, and how often each asks the model, where its configuration has no say."""


class Fleet:
    """The servers of `gym:NAME`. `overrides` change the configuration by dotted names; `config_paths` adds files to it.

    Where there are several resources servers, each row is for the one that its agent (`agent_ref`) belongs to.
    """

    def __init__(self, name: str, overrides: Mapping[str, JSON]) -> None:
        if not name:
            raise UsageError("gym: which configuration? write gym:path/to/config.yaml")
        check_overrides(overrides)
        path = find_config(name)
        self._checkout = Checkout(path)
        self._config = compose(path, self._checkout.roots, overrides)
        known = {block.name: block for block in blocks(self._config)}
        self._resources = [name for name, block in known.items() if block.kind == RESOURCES]
        self._needed = {name: known[name] for name in needed(known)}
        self._agents = {name: block for name, block in known.items() if block.kind == AGENTS}
        if not self._resources:
            raise UsageError(f"{path}: it names no resources server ({RESOURCES})")
        self.notes = [f"{path}: {who} calls {whom}, which is not in it" for who, whom in _dangling(self._needed, known)]
        self._instances: dict[str, Instance] = {}
        self._servers: dict[str, Served] = {}

    def check(self, task: Task) -> None:
        """Refuse a row that is for none of the servers; allow it the steps that its agent allows."""
        agent = self._agent(task, self._route(task))
        if agent is None:
            return
        if agent.code not in STEPS:
            note = (
                f"{agent.name} is a {agent.code}, which is not started: our own agent plays its rows, as simple_agent"
            )
            self.notes += [note] if note not in self.notes else []
        steps = STEPS.get(agent.code) or agent.settings.get("max_steps")
        task.max_turns = steps if isinstance(steps, int) and steps > 0 else None

    def _agent(self, task: Task, server: str) -> Block | None:
        """Who would play a row in Gym: the agent that it names, else the only one of its server."""
        named = self._agents.get(agent_of(task) or "")
        own = [block for block in self._agents.values() if server in block.refers]
        return named or (own[0] if len(own) == 1 else None)

    def _route(self, task: Task) -> str:
        """The server that a row is for."""
        if len(self._resources) == 1:
            return self._resources[0]
        agent = agent_of(task)
        refers = self._agents[agent].refers if agent in self._agents else []
        server = next((name for name in refers if name in self._resources), None)
        if server is None:
            known = ", ".join(self._agents) or "none"
            told = f"agent_ref {agent}" if agent else "no agent_ref"
            raise UsageError(f"{told}: of several servers, a row means that of its agent; known: {known}")
        return server

    def server_of(self, task: Task) -> Served:
        """The server that a row is for."""
        return self._servers[self._route(task)]

    async def up(self, task: Task) -> None:
        """Wait for a server that is coming back."""
        await self._instances[self._route(task)].up()

    async def start(self, route: str) -> None:
        """Start what is needed and wait until all of it answers."""
        for _ in range(TRIES):
            try:
                await self._start_all()
                break
            except PortTaken:
                await self.stop()
            except ChildFailed as error:
                await self.stop()
                raise UsageError(_told(error)) from None
        else:
            raise UsageError(f"{TRIES} times running, another program took the port of a server")
        for name in self._resources:
            self._servers[name] = Served(self._instances[name].client)
            await self._servers[name].meet(route)

    async def _start_all(self) -> None:
        held = {name: HeldPort() for name in self._needed}
        try:
            config = self._for_servers({name: port.number for name, port in held.items()})
            for name, port in held.items():
                client = Client(f"http://{HOST}:{port.number}")
                await client.open()
                self._instances[name] = Instance(name, client)
            async with asyncio.TaskGroup() as group:
                for name, instance in self._instances.items():
                    group.create_task(instance.start(self._program(self._needed[name], config)))
        except* (PortTaken, ChildFailed, UsageError) as several:
            raise several.exceptions[0] from None
        finally:
            for port in held.values():
                port.release()

    def _for_servers(self, ports: Mapping[str, int]) -> Config:
        """The configuration that the servers see: themselves and each other, where they listen, no agents."""
        servers = {block.name for block in blocks(self._config)}
        config = {name: value for name, value in self._config.items() if name not in servers}
        for name, block in self._needed.items():
            config[name] = {block.kind: {block.code: {**block.settings, "host": HOST, "port": ports[name]}}}
        home = self._checkout.home
        defaults: Config = {"results_dir": str(home / "results"), "cache_dir": str(home / "cache")}
        defaults |= {"policy_api_key": KEY_FROM_ENVIRONMENT, "head_server": {"host": HOST, "port": 11000}}
        return {**defaults, **config, "dry_run": False}

    def _program(self, block: Block, config: Config) -> Program:
        checkout = self._checkout
        paths = [*([] if checkout.needs_ray(block) else [str(NO_RAY)]), str(checkout.home)]
        if os.environ.get("PYTHONPATH"):
            paths.append(os.environ["PYTHONPATH"])
        python = checkout.python(block)
        variables = {
            "NEMO_GYM_CONFIG_DICT": yaml.safe_dump(config, sort_keys=False),
            "NEMO_GYM_CONFIG_PATH": block.name,
            "PATH": os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath))),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            # A server that uses Ray must not join whoever's cluster runs on this machine.
            "RAY_ADDRESS": os.environ.get("RAY_ADDRESS", "local"),
        }
        return Program(python, checkout.entry(block), variables)

    async def stop(self) -> None:
        """End all of them."""
        instances, self._instances, self._servers = self._instances, {}, {}
        await asyncio.gather(*(instance.stop() for instance in instances.values()))
        await asyncio.gather(*(instance.client.close() for instance in instances.values()))


def _dangling(asked: Mapping[str, Block], known: Mapping[str, Block]) -> list[tuple[str, str]]:
    """Which server calls one that the configuration does not have: what needs it will fail."""
    return [(name, whom) for name, block in asked.items() for whom in block.refers if whom not in known]


def needed(known: Mapping[str, Block]) -> list[str]:
    """The servers to start: resources servers, and the servers that those call, if the configuration has them."""
    found = [name for name, block in known.items() if block.kind == RESOURCES]
    for name in found:
        more = (other for other in known[name].refers if other in known and known[other].kind in (RESOURCES, MODELS))
        found += [other for other in more if other not in found]
    return found


def check_overrides(overrides: Mapping[str, JSON]) -> None:
    """What stands in a spec is written into the run directory, where no secret belongs."""
    for name in overrides:
        if _SECRET.fullmatch(name):
            raise UsageError(f"{name}=...: no secret goes into a run directory; write ${{oc.env:NAME}} in the file")
    if not isinstance(overrides.get(INCLUDES, []), list):
        raise UsageError(f'{INCLUDES}: write a list of files, {INCLUDES}=["a.yaml"]')


def _told(error: ChildFailed) -> str:
    lines = [line.strip() for line in error.tail.splitlines() if line.strip()]
    return f"{error.message}: {' | '.join(lines[-3:])[-600:]}" if lines else error.message
