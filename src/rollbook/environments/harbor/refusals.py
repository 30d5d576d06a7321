"""Which fields and files of a task cannot be honoured: each is refused by its name, with the reason."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from rollbook.containers import (
    ENV_VALUE,
    IMAGE_NAME,
    LEAST_CPUS,
    LEAST_MEMORY_MB,
    MOST_CPUS,
    MOST_MB,
    USER_NAME,
    VARIABLE_NAME,
    is_env_value,
    is_path_inside,
    is_text,
)
from rollbook.environments.harbor.task_files import (
    COMPOSE_FILES,
    VARIABLE,
    AgentTable,
    Artifact,
    EnvironmentTable,
    HarborTask,
    Healthcheck,
    McpTable,
    NetworkMode,
    TaskConfig,
    TaskStep,
    User,
    VerifierTable,
    artifact_source,
    find_script,
    is_safe_path,
    parse_size_mb,
    read_first_line,
    resolve_variables,
    user_name,
)

IGNORE_FILE = ".harborignore"
LOOPBACK = ("localhost", "127.0.0.1")
MOST_S = 1e9
_SHELL_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The names that `export` of a shell takes; the runtime itself takes more."""


def find_refusals(task: HarborTask, *, allow_network: bool) -> list[str]:
    """Return why a task cannot be run as its files say, a line each; none if everything is honoured."""
    config = task.config
    found = [*_check_version(config), *_check_description(config), *_check_files(task)]
    found += _check_environment(config.environment, "environment", allow_network)
    for step in task.steps:
        where = f"steps {step.name}: " if step.name else ""
        checks = [*_check_step_files(task, step), *_check_agent(step.agent, config.environment)]
        checks += _check_healthcheck(step.healthcheck, "healthcheck")
        checks += _check_verifier(task, step, allow_network)
        checks += [line for artifact in step.artifacts for line in _check_artifact(artifact)]
        checks += _check_places(step.artifacts)
        found += [f"{where}{line}" for line in checks]
    if len({step.name for step in task.steps}) < len(task.steps):
        found.append("[[steps]]: two have the same name")
    for table, variables in _variables(config):
        is_container = table.endswith("environment.env")  # a shell exports the others
        found += [f"[{table}] {line}" for line in _check_variables(variables, is_container=is_container)]
    return found


def _check_variables(variables: Mapping[str, str], *, is_container: bool) -> Iterator[str]:
    names = VARIABLE_NAME if is_container else _SHELL_VARIABLE
    for name, value in resolve_variables(variables).items():
        if not names.fullmatch(name):
            yield f"{name!r}: this is not the name of a variable"
        if not is_text(value):
            yield f"{name}: the value has a NUL character"
        elif is_container and not is_env_value(value):
            yield f"{name}: the value must be {ENV_VALUE}"
    yield from (f"{name}: the variable {missing} is not set" for name, missing in _missing(variables))


def _check_version(config: TaskConfig) -> Iterator[str]:
    for field, value in (("schema_version", config.schema_version), ("version", config.version)):
        if value.partition(".")[0] not in ("", "0", "1"):
            yield f"{field} = {value!r}: only versions up to 1 are known"


def _check_description(config: TaskConfig) -> Iterator[str]:
    name, reward = config.task.name, config.metadata.get("reward")
    if not isinstance(name, str):
        yield f"[task] name = {name!r}: give a text"
    if reward is not None and (not isinstance(reward, str) or not reward):
        yield f"[metadata] reward = {reward!r}: give the name of a reward"
    kept = config.metadata.get("keep", [])
    if not isinstance(kept, list) or not all(isinstance(path, str) and path.startswith("/") for path in kept):
        yield f"[metadata] keep = {kept!r}: give a list of absolute paths"


def _check_command(command: str, where: str) -> Iterator[str]:
    if not is_text(command):
        yield f"{where}: it has a NUL character"


def _check_files(task: HarborTask) -> Iterator[str]:
    config = task.config
    for path in sorted(task.folder.rglob(IGNORE_FILE)):
        place = path.relative_to(task.folder)
        if {"tests", "solution"} & set(place.parts):
            yield f"{place}: tests and solutions are copied whole"
    for name in COMPOSE_FILES:
        if (task.build_folder / name).is_file():
            yield f"environment/{name}: compose files (several containers) are not supported"
    if not config.environment.docker_image and not (task.build_folder / "Dockerfile").is_file():
        yield "environment/Dockerfile is missing, and [environment] has no docker_image"


def _check_step_files(task: HarborTask, step: TaskStep) -> Iterator[str]:
    if step.name and (PurePosixPath(step.name).name != step.name or step.name == ".."):
        yield "the name is no name of a folder"
        return
    if not (step.folder / "instruction.md").is_file():
        yield "instruction.md is missing"
    elif not _is_text(step.folder / "instruction.md"):
        yield "instruction.md is not text in UTF-8"
    bundled = step.verifier.is_separate and task.verifier_image(step).bundled
    if not bundled and not any((folder / "test.sh").is_file() for folder in step.tests):
        yield "tests/test.sh is missing"
    script = find_script(step.tests)
    if script and not bundled and read_first_line(script).endswith(b"\r\n"):
        where = script.relative_to(task.folder)
        yield f"{where}: its lines end with CR LF, so it cannot run: convert it (sed -i 's/\\r$//' {where})"
    if (step.folder / "trajectory.json").is_file():
        yield "trajectory.json: an earlier conversation cannot be continued"


def _is_text(path: Path) -> bool:
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_artifact(artifact: str | Artifact) -> Iterator[str]:
    source = artifact_source(artifact)
    if not is_safe_path(source) or not is_text(source) or not PurePosixPath(source).name:
        yield f"artifacts: {source!r} is no absolute path of a file or folder without .."
    if isinstance(artifact, str):
        return
    if artifact.service not in (None, "main"):
        yield f"artifacts: service {artifact.service!r} is of a compose file, which is not supported"
    if artifact.exclude:
        yield f"artifacts: exclude of {source}: artifacts are kept whole"
    if artifact.destination and not (is_safe_path(f"/{artifact.destination}") and is_text(artifact.destination)):
        yield f"artifacts: destination {artifact.destination!r} is no relative path without .."


def _check_places(artifacts: list[str | Artifact]) -> Iterator[str]:
    """Refuse an artifact that is renamed to where another one is kept: only one of them would reach the tests."""
    for one, other in combinations(artifacts, 2):
        sources, places = (artifact_source(one), artifact_source(other)), (_find_place(one), _find_place(other))
        as_inside = all(PurePosixPath(s.lstrip("/")) == place for s, place in zip(sources, places, strict=True))
        if not as_inside and (places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0])):
            yield f"artifacts: {sources[0]} and {sources[1]} would be kept in one place, {places[1]}: name another one"


def _find_place(artifact: str | Artifact) -> PurePosixPath:
    wanted = artifact.destination if isinstance(artifact, Artifact) else None
    return PurePosixPath((wanted or artifact_source(artifact)).lstrip("/"))


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
    if table.workdir and not is_path_inside(table.workdir):
        yield f"[{name}] workdir = {table.workdir!r}: give an absolute path"
    if table.docker_image and not IMAGE_NAME.fullmatch(table.docker_image):
        yield f"[{name}] docker_image = {table.docker_image!r}: this is not the name of an image"
    yield from _check_healthcheck(table.healthcheck, f"[{name}] healthcheck")
    yield from _check_limits(table, name)
    yield from _check_sizes(table, name)
    yield from _check_numbers(table, ("cpus", "memory_mb", "storage_mb", "build_timeout_sec"), f"[{name}]")


def _check_limits(table: EnvironmentTable, name: str) -> Iterator[str]:
    """Check limits that no container can have. More cores than a machine has are no mistake: a limit is a maximum."""
    memory, storage = table.memory_limit_mb, table.storage_limit_mb
    if memory is not None and (0 < memory < LEAST_MEMORY_MB or memory > MOST_MB):
        yield f"[{name}] memory_mb = {memory}: give a number from {LEAST_MEMORY_MB} to {MOST_MB}"
    if storage is not None and storage > MOST_MB:
        yield f"[{name}] storage_mb = {storage}: give a number up to {MOST_MB}"
    if table.cpus is not None and (0 < table.cpus < LEAST_CPUS or MOST_CPUS < table.cpus < math.inf):
        yield f"[{name}] cpus = {table.cpus:g}: give a number from {LEAST_CPUS} to {MOST_CPUS}"


def _check_user(user: User, where: str) -> Iterator[str]:
    if not USER_NAME.fullmatch(user_name(user)):
        yield f"{where} user = {user!r}: this is not the name of a user"


def _check_sizes(table: EnvironmentTable, name: str) -> Iterator[str]:
    """Check sizes in the older way of writing them."""
    for field, text, number in (
        ("memory", table.memory, table.memory_mb),
        ("storage", table.storage, table.storage_mb),
    ):
        if text is None:
            continue
        size = parse_size_mb(text)
        if not size or size <= 0:
            yield f"[{name}] {field} = {text!r}: write {field}_mb with a number of megabytes"
        elif number not in (None, size):
            yield f"[{name}] {field} = {text!r} contradicts {field}_mb = {number}"


def _check_numbers(table: object, fields: tuple[str, ...], where: str) -> Iterator[str]:
    for field in fields:
        number = getattr(table, field)
        if number is None:
            continue
        if not 0 < number < math.inf:
            yield f"{where} {field} = {number}: give a number above 0"
        elif field.endswith("_sec") and number > MOST_S:
            yield f"{where} {field} = {number}: give at most {MOST_S:.0f} seconds"


def _check_healthcheck(check: Healthcheck | None, where: str) -> Iterator[str]:
    if check is None:
        return
    yield from _check_command(check.command, f"{where} command")
    yield from _check_numbers(check, ("timeout_sec", "retries"), where)
    for field in ("interval_sec", "start_period_sec", "start_interval_sec"):
        if not 0 <= getattr(check, field) <= MOST_S:
            yield f"{where} {field} = {getattr(check, field)}: give a number from 0 to {MOST_S:.0f}"


def _check_servers(table: EnvironmentTable, name: str) -> Iterator[str]:
    for server in table.mcp_servers:
        where = f"[{name}] mcp_servers: {server.name}"
        if name != "environment":
            yield f"{where}: only the agent has MCP servers"
        else:
            yield from (f"{where}: {why}" for why in _check_server(server))


def _check_server(server: McpTable) -> Iterator[str]:
    if server.headers:
        yield "headers: they would have to be stored with the run"
    if server.is_http:
        if not _is_local_url(server.url or ""):
            yield f"url = {server.url!r}: only http://localhost:PORT/..., served inside the container, is supported"
    elif server.transport != "stdio":
        yield f'transport = "{server.transport}": only "stdio" and "streamable-http" are supported'
    elif not server.command:
        yield "command is missing"
    else:
        yield from _check_command("".join([server.command, *server.args]), "command")


def _is_local_url(url: str) -> bool:
    """Whether a URL is served inside the container; one that cannot be read is not."""
    try:
        address = urlsplit(url)
        return address.scheme == "http" and address.hostname in LOOPBACK and address.port != 0 and is_text(url)
    except ValueError:
        return False


def _check_agent(table: AgentTable, environment: EnvironmentTable) -> Iterator[str]:
    yield from _check_network(table, environment.network, "agent")
    yield from _check_numbers(table, ("timeout_sec",), "[agent]")
    yield from _check_user(table.user, "[agent]")


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
    yield from _check_numbers(table, ("timeout_sec",), "[verifier]")
    yield from _check_user(table.user, "[verifier]")
    for collect in table.collect:
        yield from _check_command(collect.command, "[[verifier.collect]] command")
        yield from _check_user(collect.user, "[[verifier.collect]]")
        yield from _check_numbers(collect, ("timeout_sec",), "[[verifier.collect]]")
        if collect.service != "main":
            yield f"[[verifier.collect]] service {collect.service!r} is of a compose file, which is not supported"


def _variables(config: TaskConfig) -> list[tuple[str, Mapping[str, str]]]:
    verifiers = [("", config.verifier), *((f"steps {step.name}: ", step.verifier) for step in config.steps)]
    return [
        ("environment.env", config.environment.env),
        *((f"{where}verifier.env", verifier.env) for where, verifier in verifiers),
        *(
            (f"{where}verifier.environment.env", verifier.environment.env)
            for where, verifier in verifiers
            if verifier.environment
        ),
        ("solution.env", config.solution.env),
    ]


def _missing(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in variables.items():
        match = VARIABLE.fullmatch(value)
        if match and match[2] is None and match[1] not in os.environ:
            yield name, match[1]
