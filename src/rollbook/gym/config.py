"""Write what NeMo Gym needs to use one of our servers: configuration, rows, and the folder of the server.

All three are written side by side. The configuration names the server, an agent, a model and the rows to ask. Gym
starts each server of a configuration itself, from a folder `resources_servers/NAME` with an `app.py`. Ours (the shim)
starts `rollbook serve`, which uses a server that is at its address already only if that serves the same environment.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from zlib import crc32

import msgspec
import yaml

from rollbook.core import JSON, encode
from rollbook.environments import LoadedEnvironment
from rollbook.errors import UsageError
from rollbook.gym.dataset import write_rows
from rollbook.gym.rows import AGENTS, MODELS, RESOURCES, SERVER_KINDS
from rollbook.gym.server.http_app import make_slug
from rollbook.gym.server.serve import ServeOptions, load_served_environment, make_server_name
from rollbook.models import normalize_base_url
from rollbook.processes import run_event_loop

AgentKind = Literal["simple_agent", "gymnasium_agent"]

DOMAINS = (
    *("math", "coding", "agent", "knowledge", "instruction_following", "long_context", "safety", "games"),
    *("translation", "e2e", "rlhf", "other"),
)
RESERVED_SERVER_NAMES = frozenset(
    (
        *("config_paths", "entrypoint", "default_host", "head_server", "disallowed_ports", "head_server_deps"),
        *("python_version", "pip_install_verbose", "use_absolute_ip", "uv_pip_set_python"),
        *("skip_venv_if_present", "hf_token", "ray_head_node_address", "port_range_low", "port_range_high"),
        *("dry_run", "model_endpoint_readiness_timeout_seconds", "allow_openai_version_skew", "uv_cache_dir"),
        *("uv_venv_dir", "results_dir", "cache_dir", "_inherit_from", "_copy", "nemo_gym_log_dir", "verbose"),
        *("json", "query", "observability_enabled", "model_call_capture_dir", "token_id_capture"),
        *("component_name", "skip_verification", "skip_verification_reward"),
    )
)
"""Top-level names that mean something else to Gym: a server with such a name would never be started."""

SKIP_VENV = "skip_venv_if_present"
"""The setting with which Gym uses a server's virtual environment as it is, such as the one that we write for ours."""

NonEmptyText = Annotated[str, msgspec.Meta(min_length=1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


def generate_gym_config(
    resource_server_host: str,
    resource_server_port: int,
    data_dir: str | Path,
    eval_type: str,
    model_server_url: str,
    model_id: str,
    model_server_name: str = "policy_model",
    *,
    domain: str = "other",
    agent: AgentKind = "simple_agent",
    max_steps: int | None = None,
    license: str = "TBD",
    api_key_env: str = "OPENAI_API_KEY",
) -> dict[str, JSON]:
    """Return a checked configuration. `eval_type` names the server, its agent, and the rows: DATA_DIR/EVAL_TYPE.jsonl.

    It contains no key: Gym reads the model's key from the environment.
    """
    name = make_slug(eval_type)
    if model_server_name in (name, f"{name}_agent"):
        raise UsageError(f"model_server_name {model_server_name!r}: another server of the configuration has this name")
    server: dict[str, JSON] = {
        "entrypoint": "app.py",
        "host": resource_server_host,
        "port": resource_server_port,
        "domain": domain,
        "description": f"{eval_type}, served by Rollbook",
        "verified": False,
    }
    rows = {"name": name, "type": "validation", "jsonl_fpath": str(Path(data_dir) / f"{name}.jsonl")}
    agent_settings: dict[str, JSON] = {
        "entrypoint": "app.py",
        "resources_server": {"type": RESOURCES, "name": name},
        "model_server": {"type": MODELS, "name": model_server_name},
        **({} if max_steps is None else {"max_steps": max_steps}),
        "datasets": [{**rows, "license": license}],
    }
    model: dict[str, JSON] = {
        "entrypoint": "app.py",
        "base_url": normalize_base_url(model_server_url),
        "api_key": f"${{oc.env:{api_key_env},EMPTY}}",
        "model": model_id,
        "return_token_id_information": False,
        "uses_reasoning_parser": True,
    }
    config = {
        name: {RESOURCES: {name: server}},
        f"{name}_agent": {AGENTS: {agent: agent_settings}},
        model_server_name: {MODELS: {"vllm_model": model}},
    }
    check_gym_config(config)
    return config


def write_gym_config(config: Mapping[str, JSON], output_path: str | Path | None = None) -> str:
    """Write a configuration, read it back and check it; without a path, to a temporary file that the caller owns."""
    if output_path is None:
        handle, temporary = tempfile.mkstemp(prefix="rollbook_gym_", suffix=".yaml")
        os.close(handle)
        output_path = temporary
    try:
        Path(output_path).parent.mkdir(parents=True, exist_ok=True)
        Path(output_path).write_text(yaml.safe_dump(dict(config), sort_keys=False))
    except OSError as error:
        raise UsageError(f"-o {output_path}: {error.strerror}") from None
    check_gym_config(yaml.safe_load(Path(output_path).read_text()))
    return str(output_path)


class DatasetConfig(msgspec.Struct, frozen=True):
    """A file of rows, in Gym's form."""

    name: str
    type: Literal["train", "validation", "example"]
    jsonl_fpath: str
    num_repeats: int = 1
    license: str | None = None


class ServerRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference to another server."""

    type: Literal["resources_servers", "responses_api_agents", "responses_api_models"]
    name: str


class ServerConfig(msgspec.Struct, frozen=True):
    """The settings that are checked in every server's block."""

    entrypoint: NonEmptyText
    host: NonEmptyText | None = None
    port: Port | None = None
    model: NonEmptyText | None = None
    domain: str | None = None
    datasets: list[DatasetConfig] = []
    resources_server: ServerRef | None = None
    model_server: ServerRef | None = None


def check_gym_config(config: JSON) -> None:
    """Refuse what Gym would refuse: UsageError names the block and what is wrong with it."""
    if not isinstance(config, dict) or not config:
        raise UsageError("the configuration has no servers")
    config = {name: block for name, block in config.items() if (name, block) != (SKIP_VENV, True)}
    for name in RESERVED_SERVER_NAMES.intersection(config):
        raise UsageError(f"{name}: Gym has another meaning for that name; give the server another")
    servers = {str(name): _read_server(str(name), block) for name, block in config.items()}
    for name, (kind, server) in servers.items():
        if kind == RESOURCES and server.domain not in DOMAINS:
            raise UsageError(f"{name}: domain {server.domain!r}; known are {', '.join(DOMAINS)}")
        for ref in (server.resources_server, server.model_server):
            if ref and (ref.name not in servers or servers[ref.name][0] != ref.type):
                raise UsageError(f"{name}: it refers to {ref.type} {ref.name}, which is not in the configuration")
        for dataset in server.datasets:
            if dataset.type != "example" and dataset.license is None:
                raise UsageError(f"{name}: the dataset {dataset.name} needs a license")


def _read_server(name: str, block: JSON) -> tuple[str, ServerConfig]:
    kind = next(iter(block), "") if isinstance(block, dict) else ""
    inner = block[kind] if kind in SERVER_KINDS and len(block) == 1 else None
    if not isinstance(inner, dict) or len(inner) != 1:
        raise UsageError(f"{name}: a server is one of {', '.join(SERVER_KINDS)} with one implementation")
    try:
        return kind, msgspec.convert(next(iter(inner.values())), ServerConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}") from None


_APP_TEMPLATE = '''"""Starts `rollbook serve` for NeMo Gym, or uses a server at its address that serves the same."""

import os

FOLDER = {folder!r}
COMMAND = {command!r}

os.chdir(FOLDER)
os.environ.pop("PYTHONPATH", None)
os.execv(COMMAND[0], COMMAND)
'''


def write_shim(root: Path, name: str, command: Sequence[str]) -> Path:
    """Write the server's folder beneath `root`; start Gym there, or pass it with --search-dir."""
    folder = root / "resources_servers" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "app.py").write_text(_APP_TEMPLATE.format(folder=str(Path.cwd()), command=list(command)))
        (folder / "requirements.txt").write_text("# Nothing: rollbook runs where it is installed.\n")
        _write_venv(folder / ".venv" / "bin")
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    return folder


def _write_venv(folder: Path) -> None:
    """Write what Gym takes for the server's virtual environment; else it would install itself, Ray and more there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "activate").write_text(f'export PATH={shlex.quote(str(folder))}:"$PATH"\n')
    (folder / "python").unlink(missing_ok=True)
    (folder / "python").symlink_to(sys.executable)


PORT_RANGE = range(20001, 32768)
"""Between the ports that Gym gives to its own servers and those that Linux gives to clients."""


class Deployment(msgspec.Struct, frozen=True):
    """What `write_deployment` wrote."""

    name: str
    port: int
    data: Path
    rows: int
    shim: Path


def write_deployment(
    options: ServeOptions,
    out: Path,
    model_url: str,
    model_name: str,
    *,
    judges: Sequence[str] = (),
    limit: int | None = None,
    domain: str = "other",
    api_key_env: str = "OPENAI_API_KEY",
) -> Deployment:
    """Write the YAML to `out`, the rows to data/, the server's folder to resources_servers/."""
    loaded = load_served_environment(options)
    name, root = make_server_name(loaded, options.eval_type), out.resolve().parent
    port = options.port or choose_port(_serve_arguments(options, judges))
    spec, options = loaded.spec, msgspec.structs.replace(options, reuse=True, port=port)
    config = generate_gym_config(
        options.host,
        options.port,
        root / "data",
        name,
        model_url,
        model_name,
        domain=domain,
        agent="gymnasium_agent" if spec.replies else "simple_agent",
        max_steps=options.limits.max_turns if spec.tools or spec.offers or spec.replies else None,
        api_key_env=api_key_env,
    )
    data = root / "data" / f"{name}.jsonl"
    rows = run_event_loop(lambda: _write_environment_rows(loaded, data, f"{name}_agent", limit))
    write_gym_config({**config, SKIP_VENV: True}, out)
    command = [sys.executable, "-m", "rollbook", "serve", *_serve_arguments(options, judges)]
    shim = write_shim(root, name, command)
    return Deployment(name, options.port, data, rows, shim)


def choose_port(arguments: Iterable[str]) -> int:
    """Return a port derived from what is served, and from where: Gym needs it in advance.

    Should two servers get the same one nevertheless, the second refuses to start.
    """
    return PORT_RANGE[crc32("\0".join((str(Path.cwd()), *arguments)).encode()) % len(PORT_RANGE)]


async def _write_environment_rows(loaded: LoadedEnvironment, data: Path, agent: str, limit: int | None) -> int:
    """Write the rows; an environment that offers tools per task may have to be started before it can list them."""
    if not loaded.spec.offers:
        return write_rows(loaded, data, agent=agent, limit=limit)
    try:
        await loaded.instance.start()
        return write_rows(loaded, data, agent=agent, limit=limit)
    finally:
        await loaded.instance.stop()


def _serve_arguments(options: ServeOptions, judges: Sequence[str]) -> Iterator[str]:
    """Yield the command-line arguments for the options."""
    yield from (options.env, "--host", options.host, "--port", str(options.port))
    if options.reuse:
        yield "--reuse"
    texts = {
        "--data": options.data,
        "--prompt-template": options.template,
        "--eval-type": options.eval_type,
        "--judge-name": options.judge_name,
    }
    for option, value in texts.items():
        if value:
            yield from (option, value)
    for url in judges:
        yield from ("--judge", url)
    for key, value in options.harness_args.items():
        yield from ("--harness-arg", f"{key}={encode(value).decode()}")
