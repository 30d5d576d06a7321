"""Task folders in Harbor's form: find them and read task.toml.

The structs here are our own: the package `harbor` needs Python 3.12 and 379 MB, and its models accept fields that only
some of its backends honour. A field that is unknown is refused by its name; `refusals` names those that we know and
cannot honour.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

import msgspec

from rollbook.core import JSON
from rollbook.errors import UsageError

MAX_FIRST_LINE_BYTES = 4096
CONFIG_FILE = "task.toml"
COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml")
NetworkMode: TypeAlias = Literal["public", "no-network", "allowlist"]
User: TypeAlias = str | int | None

VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
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
    """An MCP server for the agent: a command that is run inside the container, or a URL that is served there."""

    name: str
    transport: str = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}

    @property
    def is_http(self) -> bool:
        """Whether it is reached by a URL; `http` is Harbor's short name for the present form of that."""
        return self.transport in ("http", "streamable-http")


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
        """The longest that the tests and what precedes them may take; commands that collect may run twice."""
        return self.timeout_sec + 2 * sum(each.timeout_sec for each in self.collect)


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


class DescriptionTable(_Table, frozen=True):
    """[task]: what the task is called, and by whom it is; nothing of it changes how it runs."""

    name: JSON = ""
    version: str | None = None
    description: str = ""
    authors: list[dict[str, JSON]] = []
    keywords: list[str] = []


class TaskConfig(_Table, frozen=True):
    """task.toml."""

    schema_version: str = ""
    version: str = ""
    task: DescriptionTable = DescriptionTable()
    metadata: dict[str, JSON] = {}
    source: str | None = None
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()
    steps: list[StepTable] = []
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[str | Artifact] = []

    @property
    def kept_changes(self) -> list[str]:
        """[metadata] keep: the paths whose changes stay for the tests that share the agent's container."""
        kept = self.metadata.get("keep", [])
        return [str(path) for path in kept] if isinstance(kept, list) else []


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
        return strip_canary((self.folder / "instruction.md").read_text())


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
        """Return what the separate container of a step's tests is made from: the step's own image, then the task's."""
        table = step.verifier.environment or self.config.environment
        for own, folder in self._verifier_sources(step):
            if own and own.docker_image:
                return VerifierImage(table, own.docker_image, "", True)
            if (folder / "Dockerfile").is_file():
                return VerifierImage(table, "", str(folder), True)
        image = self.config.environment.docker_image or ""
        return VerifierImage(table, image, "" if image else str(self.build_folder), False)

    def _verifier_sources(self, step: TaskStep) -> list[tuple[EnvironmentTable | None, Path]]:
        """Return the tables and folders that may define the container of tests, in Harbor's order."""
        of_step = [each.verifier.environment for each in self.config.steps if each.name == step.name]
        of_task = (self.config.verifier.environment, self.folder / "tests")
        return [*((table, step.folder / "tests") for table in of_step), of_task]


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
    try:
        lines = path.read_text().splitlines()
    except (UnicodeDecodeError, OSError) as error:
        raise UsageError(f"harbor:{path}: this is not a list of task folders: {error}") from None
    for number, line in enumerate(lines, 1):
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
        tables = tomllib.loads(path.read_text())
        for line in _check_values({**tables, "metadata": {}, "task": {}}, ""):
            raise UsageError(f"{path}: {line}")
        config = msgspec.convert(tables, TaskConfig)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path}: {error}") from None
    except RecursionError:
        raise UsageError(f"{path}: tables or arrays are nested too deeply") from None
    return HarborTask(folder, config)


def _check_values(table: Mapping[str, JSON], where: str) -> Iterator[str]:
    """Yield the variables of `env` tables that are not text: the error of a conversion does not name them.

    >>> list(_check_values({"verifier": {"env": {"A": "1", "B": 2}}}, ""))
    ['[verifier.env] B = 2: give a text, as in B = "2"']
    """
    for key, value in table.items():
        place = f"{where}.{key}" if where else key
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict) and key == "env":
                for name, each in inner.items():
                    if not isinstance(each, str):
                        yield f'[{place}] {name} = {each}: give a text, as in {name} = "{each}"'
            elif isinstance(inner, dict):
                yield from _check_values(inner, place)


def strip_canary(text: str) -> str:
    """Return an instruction without the marks at its beginning that keep benchmarks out of training data.

    >>> strip_canary("<!-- canary 123 -->\\n\\nDo it.")
    'Do it.'
    """
    lines = text.split("\n")
    while lines and _CANARY.fullmatch(lines[0].strip()):
        del lines[0]
    while len(lines) > 1 and not lines[0].strip():
        del lines[0]
    return "\n".join(lines)


def resolve_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with ${NAME} and ${NAME:-default} replaced from our own; values are never stored.

    >>> resolve_variables({"A": "x", "B": "${ROLLBOOK_NOT_SET:-y}"})
    {'A': 'x', 'B': 'y'}
    """
    matches = {name: VARIABLE.fullmatch(value) for name, value in variables.items()}
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


def find_script(folders: Sequence[Path]) -> Path | None:
    """Return the test.sh that runs if these folders become /tests, in this order."""
    return next((path for folder in reversed(folders) if (path := folder / "test.sh").is_file()), None)


def read_first_line(script: Path) -> bytes:
    """Return the first line of a script with its end, bounded."""
    with script.open("rb") as file:
        return file.readline(MAX_FIRST_LINE_BYTES)
