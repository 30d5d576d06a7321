"""Task folders in Harbor's form: find them, read task.toml, and say which of its fields cannot be honoured.

The structs here are our own: the package `harbor` needs Python 3.12 and 379 MB, and its models accept fields that only
some of its backends honour. A field that is unknown, or that we cannot honour, is refused by its name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

import msgspec

from rollbook.core import JSON
from rollbook.errors import UsageError

CONFIG_FILE = "task.toml"
COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml")
NetworkMode: TypeAlias = Literal["public", "no-network", "allowlist"]
User: TypeAlias = str | int | None

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_SIZE_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024}


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of task.toml; a key that it does not have is a mistake or a later version."""


class AgentTable(_Table, frozen=True):
    """[agent]: `timeout_sec` ends the agent, and what it did is verified."""

    timeout_sec: float | None = None
    user: User = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class Healthcheck(_Table, frozen=True):
    """A command that must succeed before the agent begins."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class McpTable(_Table, frozen=True):
    """An MCP server for the agent; one with `transport = "stdio"` is a command that runs inside the container."""

    name: str
    transport: str = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []


class Artifact(_Table, frozen=True):
    """A file or folder that is kept of a rollout."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class Collect(_Table, frozen=True):
    """A command that is run before artifacts are collected."""

    command: str
    service: str = "main"
    timeout_sec: float = 60.0
    user: User = None


class EnvironmentTable(_Table, frozen=True):
    """[environment]: the container."""

    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    memory: str | None = None
    storage: str | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: JSON = None
    mcp_servers: list[McpTable] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    allow_internet: bool | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @property
    def network(self) -> NetworkMode:
        """What the container may reach; Harbor's default is everything."""
        if self.network_mode is None and self.allow_internet is False:
            return "no-network"
        return self.network_mode or "public"

    @property
    def memory_limit_mb(self) -> int | None:
        """The memory, also in the older way of writing it."""
        return self.memory_mb if self.memory_mb is not None or self.memory is None else parse_size_mb(self.memory)

    @property
    def storage_limit_mb(self) -> int | None:
        """The disk, also in the older way of writing it."""
        return self.storage_mb if self.storage_mb is not None or self.storage is None else parse_size_mb(self.storage)


class VerifierTable(_Table, frozen=True):
    """[verifier]: how the tests run."""

    timeout_sec: float = 600.0
    env: dict[str, str] = {}
    user: User = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: list[Collect] = []

    @property
    def is_separate(self) -> bool:
        """Whether the tests run in a container of their own."""
        if self.environment_mode is not None:
            return self.environment_mode == "separate"
        return self.environment is not None

    @property
    def longest_s(self) -> float:
        """The longest that the tests and what precedes them may take."""
        return self.timeout_sec + sum(each.timeout_sec for each in self.collect)


class SolutionTable(_Table, frozen=True):
    """[solution]: variables of the oracle."""

    env: dict[str, str] = {}


class StepTable(_Table, frozen=True):
    """[[steps]]: one of several instructions, each with tests of its own."""

    name: str
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | Artifact] = []


class TaskConfig(_Table, frozen=True):
    """task.toml."""

    schema_version: str = ""
    version: str = ""
    task: dict[str, JSON] = {}
    metadata: dict[str, JSON] = {}
    source: str | None = None
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()
    steps: list[StepTable] = []
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[str | Artifact] = []


class TaskStep(msgspec.Struct, frozen=True):
    """One instruction with its tests; a task that has no [[steps]] is a single one without a name.

    `folder` has instruction.md, tests, solution and workdir; `tests` are the folders that become /tests, in this order.
    """

    name: str
    folder: Path
    agent: AgentTable
    verifier: VerifierTable
    tests: list[Path]
    artifacts: list[str | Artifact]
    min_reward: dict[str, float] = {}
    healthcheck: Healthcheck | None = None

    @property
    def instruction(self) -> str:
        """What the agent is told."""
        return (self.folder / "instruction.md").read_text()


class VerifierImage(msgspec.Struct, frozen=True):
    """The container of separate tests: its table, and where its image comes from; `bundled`: /tests is part of it."""

    table: EnvironmentTable
    image: str
    build: str
    bundled: bool


class HarborTask(msgspec.Struct, frozen=True):
    """A task folder and what its task.toml says."""

    folder: Path
    config: TaskConfig

    @property
    def build_folder(self) -> Path:
        """The folder of the Dockerfile."""
        return self.folder / "environment"

    @property
    def steps(self) -> list[TaskStep]:
        """The steps with the values of the task where they have none of their own."""
        config = self.config
        if not config.steps:
            tests = [self.folder / "tests"]
            return [TaskStep("", self.folder, config.agent, config.verifier, tests, config.artifacts)]
        return [self._make_step(table) for table in config.steps]

    def _make_step(self, table: StepTable) -> TaskStep:
        config, folder = self.config, self.folder / "steps" / table.name
        agent = msgspec.structs.replace(
            config.agent,
            timeout_sec=config.agent.timeout_sec if table.agent.timeout_sec is None else table.agent.timeout_sec,
            user=config.agent.user if table.agent.user is None else table.agent.user,
            network_mode=table.agent.network_mode or config.agent.network_mode,
            allowed_hosts=table.agent.allowed_hosts or config.agent.allowed_hosts,
        )
        own = table.verifier
        verifier = msgspec.structs.replace(
            own,
            env={**config.verifier.env, **own.env},
            user=config.verifier.user if own.user is None else own.user,
            network_mode=own.network_mode or config.verifier.network_mode,
            allowed_hosts=own.allowed_hosts or config.verifier.allowed_hosts,
            environment_mode=own.environment_mode or ("separate" if own.environment else _mode(config.verifier)),
            environment=own.environment or config.verifier.environment,
            collect=[*config.verifier.collect, *own.collect],
        )
        tests = [each for each in (self.folder / "tests", folder / "tests") if each.is_dir()]
        least = {"reward": table.min_reward} if isinstance(table.min_reward, float) else table.min_reward or {}
        artifacts = [*config.artifacts, *table.artifacts]
        return TaskStep(table.name, folder, agent, verifier, tests, artifacts, least, table.healthcheck)

    def verifier_image(self, step: TaskStep) -> VerifierImage:
        """Return what the separate container of a step's tests is made from."""
        table = step.verifier.environment or self.config.environment
        if step.verifier.environment and step.verifier.environment.docker_image:
            return VerifierImage(table, step.verifier.environment.docker_image, "", True)
        for folder in reversed(step.tests):
            if (folder / "Dockerfile").is_file():
                return VerifierImage(table, "", str(folder), True)
        image = self.config.environment.docker_image or ""
        return VerifierImage(table, image, "" if image else str(self.build_folder), False)


def _mode(verifier: VerifierTable) -> Literal["shared", "separate"]:
    return "separate" if verifier.is_separate else "shared"


def find_task_folders(path: Path) -> list[Path]:
    """Return the task folders that a path means: itself, those directly inside, or those that a file lists."""
    if (path / CONFIG_FILE).is_file():
        return [path.resolve()]
    if path.is_dir():
        found = sorted(each.parent.resolve() for each in path.glob(f"*/{CONFIG_FILE}"))
        if not found:
            raise UsageError(
                f"harbor:{path}: no {CONFIG_FILE} in it or directly below; name a task or a folder of tasks"
            )
        return found
    if not path.is_file():
        raise UsageError(f"harbor:{path}: there is no such folder or list")
    return list(_read_list(path))


def _read_list(path: Path) -> Iterator[Path]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        folder = (path.parent / name).resolve()
        if not (folder / CONFIG_FILE).is_file():
            raise UsageError(f"harbor:{path}: line {number}: {name} is no folder with a {CONFIG_FILE}")
        yield folder


def read_task(folder: Path) -> HarborTask:
    """Read a task folder; a UsageError names the file and the field that is wrong."""
    path = folder / CONFIG_FILE
    try:
        config = msgspec.convert(tomllib.loads(path.read_text()), TaskConfig)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path}: {error}") from None
    return HarborTask(folder, config)


def find_refusals(task: HarborTask, *, allow_network: bool) -> list[str]:
    """Return why a task cannot be run as its files say, a line each; none if everything is honoured."""
    config = task.config
    found = [*_check_files(task), *_check_environment(config.environment, "environment", allow_network)]
    for step in task.steps:
        where = f"steps {step.name}: " if step.name else ""
        checks = [*_check_step_files(step), *_check_agent(step.agent, config.environment)]
        checks += _check_verifier(task, step, allow_network)
        checks += [line for artifact in step.artifacts for line in _check_artifact(artifact)]
        found += [f"{where}{line}" for line in checks]
    if len({step.name for step in task.steps}) < len(task.steps):
        found.append("[[steps]]: two have the same name")
    for table, variables in _variables(config):
        found += [f"[{table}] {name}: the variable {missing} is not set" for name, missing in _missing(variables)]
    return found


def _check_files(task: HarborTask) -> Iterator[str]:
    config = task.config
    for name in COMPOSE_FILES:
        if (task.build_folder / name).is_file():
            yield f"environment/{name}: compose files (several containers) are not supported"
    if not config.environment.docker_image and not (task.build_folder / "Dockerfile").is_file():
        yield "environment/Dockerfile is missing, and [environment] has no docker_image"


def _check_step_files(step: TaskStep) -> Iterator[str]:
    if step.name and (PurePosixPath(step.name).name != step.name or step.name == ".."):
        yield "the name is no name of a folder"
        return
    if not (step.folder / "instruction.md").is_file():
        yield "instruction.md is missing"
    separate = step.verifier.is_separate and step.verifier.environment and step.verifier.environment.docker_image
    if not separate and not any((folder / "test.sh").is_file() for folder in step.tests):
        yield "tests/test.sh is missing"
    if (step.folder / "trajectory.json").is_file():
        yield "trajectory.json: an earlier conversation cannot be continued"


def _check_artifact(artifact: str | Artifact) -> Iterator[str]:
    source = artifact_source(artifact)
    if not is_safe_path(source):
        yield f"artifacts: {source!r} is no absolute path without .."
    if isinstance(artifact, str):
        return
    if artifact.service not in (None, "main"):
        yield f"artifacts: service {artifact.service!r} is of a compose file, which is not supported"
    if artifact.exclude:
        yield f"artifacts: exclude of {source}: artifacts are kept whole"
    if artifact.destination and not is_safe_path(f"/{artifact.destination}"):
        yield f"artifacts: destination {artifact.destination!r} is no relative path without .."


def _check_environment(table: EnvironmentTable, name: str, allow_network: bool) -> Iterator[str]:
    if table.os.lower() != "linux":
        yield f"[{name}] os = {table.os!r}: only linux containers run here"
    if table.gpus or table.gpu_types or table.tpu:
        yield f"[{name}] gpus, gpu_types, tpu: containers get no accelerators"
    if table.network == "allowlist" or table.allowed_hosts:
        yield f"[{name}] allowed_hosts: podman and docker cannot enforce a list of hosts"
    if table.network == "public" and not allow_network:
        yield f'[{name}] network_mode = "public": allow it with --allow-network, or write network_mode = "no-network"'
    yield from _check_servers(table, name)
    if table.skills_dir:
        yield f"[{name}] skills_dir: the built-in agent has no folder of skills"
    if table.workdir and not table.workdir.startswith("/"):
        yield f"[{name}] workdir = {table.workdir!r}: give an absolute path"
    for field, value in (("memory", table.memory), ("storage", table.storage)):
        if value is not None and parse_size_mb(value) is None:
            yield f"[{name}] {field} = {value!r}: write {field}_mb with a number of megabytes"
    for field in ("cpus", "memory_mb", "storage_mb"):
        number = getattr(table, field)
        if number is not None and number <= 0:
            yield f"[{name}] {field} = {number}: give a number above 0"


def _check_servers(table: EnvironmentTable, name: str) -> Iterator[str]:
    for server in table.mcp_servers:
        where = f"[{name}] mcp_servers: {server.name}"
        if name != "environment":
            yield f"{where}: only the agent has MCP servers"
        elif server.transport != "stdio":
            only = 'only "stdio", a command inside the container, is supported'
            yield f'{where}: transport = "{server.transport}": {only}'
        elif not server.command:
            yield f"{where}: command is missing"


def _check_agent(table: AgentTable, environment: EnvironmentTable) -> Iterator[str]:
    yield from _check_network(table, environment.network, "agent")


def _check_network(table: AgentTable | VerifierTable, network: NetworkMode, name: str) -> Iterator[str]:
    """Check a phase that has a network of its own: one container has one network from its start to its end."""
    if table.network_mode is not None and table.network_mode != network:
        yield f"[{name}] network_mode = {table.network_mode!r}: its container has that of [environment], {network!r}"
    if table.allowed_hosts:
        yield f"[{name}] allowed_hosts: podman and docker cannot enforce a list of hosts"


def _check_verifier(task: HarborTask, step: TaskStep, allow_network: bool) -> Iterator[str]:
    table, environment = step.verifier, task.config.environment
    if table.environment_mode == "shared" and table.environment is not None:
        yield '[verifier] environment goes with environment_mode = "separate"'
    if table.is_separate:
        image = task.verifier_image(step)
        environment = image.table
        if table.environment is not None:
            yield from _check_environment(image.table, "verifier.environment", allow_network)
        if any((folder / name).is_file() for folder in step.tests for name in COMPOSE_FILES):
            yield "tests/docker-compose.yaml: compose files (several containers) are not supported"
    yield from _check_network(table, environment.network, "verifier")
    for collect in table.collect:
        if collect.service != "main":
            yield f"[[verifier.collect]] service {collect.service!r} is of a compose file, which is not supported"


def _variables(config: TaskConfig) -> list[tuple[str, Mapping[str, str]]]:
    return [
        ("environment.env", config.environment.env),
        ("verifier.env", config.verifier.env),
        *((f"steps {step.name}: verifier.env", step.verifier.env) for step in config.steps),
        ("solution.env", config.solution.env),
    ]


def _missing(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in variables.items():
        match = _TEMPLATE.fullmatch(value)
        if match and match[2] is None and match[1] not in os.environ:
            yield name, match[1]


def resolve_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with ${NAME} and ${NAME:-default} replaced from our own; values are never stored.

    >>> resolve_variables({"A": "x", "B": "${ROLLBOOK_NOT_SET:-y}"})
    {'A': 'x', 'B': 'y'}
    """
    matches = {name: _TEMPLATE.fullmatch(value) for name, value in variables.items()}
    return {
        name: os.environ.get(match[1], match[2] or "") if (match := matches[name]) else value
        for name, value in variables.items()
    }


def parse_size_mb(text: str) -> int | None:
    """Return a size such as 2G in megabytes; None if it is none.

    >>> parse_size_mb("2G"), parse_size_mb("512m"), parse_size_mb("many")
    (2048, 512, None)
    """
    number, unit = text.strip()[:-1], text.strip()[-1:].upper()
    try:
        return int(float(number) * _SIZE_UNITS[unit])
    except (ValueError, KeyError):
        return None


def artifact_source(artifact: str | Artifact) -> str:
    """Return the path inside of an artifact."""
    return artifact if isinstance(artifact, str) else artifact.source


def is_safe_path(path: str) -> bool:
    """Whether a path inside is absolute and names no folder above itself."""
    return path.startswith("/") and ".." not in PurePosixPath(path).parts


def user_name(user: User) -> str:
    """Return a user as the runtime takes it; empty for the image's own."""
    return "" if user is None else str(user)
