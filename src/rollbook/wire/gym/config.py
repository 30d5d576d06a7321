"""The configuration with which NeMo Gym uses one of our servers: the server, an agent, a model and the rows to ask."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml

from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.models.address import base_url
from rollbook.wire.gym.cookie import slug

Agent = Literal["simple_agent", "gymnasium_agent"]

DOMAINS = (
    *("math", "coding", "agent", "knowledge", "instruction_following", "long_context", "safety", "games"),
    *("translation", "e2e", "rlhf", "other"),
)
TYPES = ("resources_servers", "responses_api_agents", "responses_api_models")
RESERVED = frozenset(
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
"""Names that mean something else to Gym at the top of a configuration: a server so called would never be started."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
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
    agent: Agent = "simple_agent",
    max_steps: int | None = None,
    license: str = "TBD",
    api_key_env: str = "OPENAI_API_KEY",
) -> dict[str, JSON]:
    """The configuration, checked. `eval_type` names the server, its agent, and the rows: DATA_DIR/EVAL_TYPE.jsonl.

    No key is in it: the model's is read from the environment by Gym.
    """
    name = slug(eval_type)
    if model_server_name in (name, f"{name}_agent"):
        raise UsageError(f"model_server_name {model_server_name!r}: another server of the configuration is called so")
    ours: dict[str, JSON] = {
        "entrypoint": "app.py",
        "host": resource_server_host,
        "port": resource_server_port,
        "domain": domain,
        "description": f"{eval_type}, served by Rollbook",
        "verified": False,
    }
    rows = {"name": name, "type": "validation", "jsonl_fpath": str(Path(data_dir) / f"{name}.jsonl")}
    plays: dict[str, JSON] = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": name},
        "model_server": {"type": "responses_api_models", "name": model_server_name},
        **({} if max_steps is None else {"max_steps": max_steps}),
        "datasets": [{**rows, "license": license}],
    }
    model: dict[str, JSON] = {
        "entrypoint": "app.py",
        "base_url": base_url(model_server_url),
        "api_key": f"${{oc.env:{api_key_env},EMPTY}}",
        "model": model_id,
        "return_token_id_information": False,
        "uses_reasoning_parser": True,
    }
    config = {
        name: {"resources_servers": {name: ours}},
        f"{name}_agent": {"responses_api_agents": {agent: plays}},
        model_server_name: {"responses_api_models": {"vllm_model": model}},
    }
    check_gym_config(config)
    return config


def write_gym_config(config: Mapping[str, JSON], output_path: str | Path | None = None) -> str:
    """Write a configuration and read it back, checked; without a path, to a temporary file that is the caller's."""
    if output_path is None:
        handle, made = tempfile.mkstemp(prefix="rollbook_gym_", suffix=".yaml")
        os.close(handle)
        output_path = made
    try:
        Path(output_path).parent.mkdir(parents=True, exist_ok=True)
        Path(output_path).write_text(yaml.safe_dump(dict(config), sort_keys=False))
    except OSError as error:
        raise UsageError(f"-o {output_path}: {error.strerror}") from None
    check_gym_config(yaml.safe_load(Path(output_path).read_text()))
    return str(output_path)


class Dataset(msgspec.Struct, frozen=True):
    """A file of rows, as Gym wants one described."""

    name: str
    type: Literal["train", "validation", "example"]
    jsonl_fpath: str
    num_repeats: int = 1
    license: str | None = None


class Ref(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server that another one speaks of."""

    type: Literal["resources_servers", "responses_api_agents", "responses_api_models"]
    name: str


class Server(msgspec.Struct, frozen=True):
    """What every server's block must have."""

    entrypoint: Text
    host: Text | None = None
    port: Port | None = None
    model: Text | None = None
    domain: str | None = None
    datasets: list[Dataset] = []
    resources_server: Ref | None = None
    model_server: Ref | None = None


def check_gym_config(config: JSON) -> None:
    """Refuse what Gym would refuse: UsageError names the block and what is wrong with it."""
    if not isinstance(config, dict) or not config:
        raise UsageError("the configuration has no servers")
    for name in RESERVED.intersection(config):
        raise UsageError(f"{name}: Gym has another meaning for that name; give the server another")
    servers = {str(name): _server(str(name), block) for name, block in config.items()}
    for name, (kind, server) in servers.items():
        if kind == "resources_servers" and server.domain not in DOMAINS:
            raise UsageError(f"{name}: domain {server.domain!r}; known are {', '.join(DOMAINS)}")
        for ref in (server.resources_server, server.model_server):
            if ref and (ref.name not in servers or servers[ref.name][0] != ref.type):
                raise UsageError(f"{name}: it speaks of {ref.type} {ref.name}, which is not there")
        for dataset in server.datasets:
            if dataset.type != "example" and dataset.license is None:
                raise UsageError(f"{name}: the dataset {dataset.name} needs a license")


def _server(name: str, block: JSON) -> tuple[str, Server]:
    kind = next(iter(block), "") if isinstance(block, dict) else ""
    inner = block[kind] if kind in TYPES and len(block) == 1 else None
    if not isinstance(inner, dict) or len(inner) != 1:
        raise UsageError(f"{name}: a server is one of {', '.join(TYPES)} with one implementation")
    try:
        return kind, msgspec.convert(next(iter(inner.values())), Server)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}") from None
