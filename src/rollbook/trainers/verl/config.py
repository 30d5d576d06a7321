"""What verl's configuration and rows request: environments, sampling, tasks, servers, and the verl version.

The environments are in the `rollbook:` block of the file that verl's `agent_loop_config_path` names. verl's contracts
change between releases, so a version that is not known to work is refused at the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import yaml

from rollbook.core import JSON, Sampling, decode, encode
from rollbook.engine import Entry, OnFailure, read_blend
from rollbook.errors import UsageError

VERL_PREFIX, TESTED_VERSION = "0.9.", "0.9.1"


def check_verl() -> str:
    """Return the installed version; UsageError if there is none, or one that is not known to work."""
    try:
        installed = version("verl")
    except PackageNotFoundError:
        raise UsageError(f"verl is not installed here: pip install verl=={TESTED_VERSION}") from None
    if not installed.startswith(VERL_PREFIX):
        raise UsageError(
            f"verl {installed} is installed, but Rollbook works with {VERL_PREFIX}x: pip install verl=={TESTED_VERSION}"
        )
    return installed


class VerlConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to run, with which model, and what to do with failures. Set one of `environments`, `blend` and `gym`."""

    environments: list[Entry] = []
    """Each with `env` as on the command line, `name` as in the rows' `agent_ref`, `data` where `env` needs it."""
    blend: str | None = None
    """The file of a blend, relative to this one."""
    gym: list[str] = []
    """Configurations of a NeMo Gym checkout; the names of its agents route the rows."""
    urls: list[str] = []
    """Endpoints; by default those of verl's own servers."""
    model_name: str = ""
    on_failure: OnFailure = "raise"
    continue_tokens: bool = False
    concurrency: int = 256
    """Rollouts in flight at once, for each environment."""
    attempts: dict[str, int] = {}
    outage_s: float = 300.0
    """How long all rows together wait for endpoints that do not answer."""
    seed: int = 0
    pad_id: int | None = None
    """By default that of the model's tokenizer."""

    def entries(self, folder: Path) -> dict[str, Entry]:
        """Return the environments by their names in the rows."""
        if self.gym:
            query = f"?config_paths={encode(self.gym[1:]).decode()}" if self.gym[1:] else ""
            return {"gym": Entry(env=f"gym:{self.gym[0]}{query}")}
        listed = read_blend_entries(folder / self.blend) if self.blend else self.environments
        by_name = {entry.name or entry.env: entry for entry in listed}
        if len(by_name) < len(listed):
            raise UsageError("two environments of the rollbook: block have one name; give each a name of its own")
        return by_name


def read_blend_entries(path: Path) -> list[Entry]:
    """Return the environments of a blend, with the paths of its files resolved."""
    blend = read_blend(path)
    return [
        msgspec.structs.replace(
            entry,
            env=(blend.resolve_path(entry.env) or "") if ".py:" in entry.env else entry.env,
            data=blend.resolve_path(entry.data),
            template=blend.resolve_path(entry.template),
        )
        for _, entry in blend.entries
    ]


def read_config(path: str | Path | None) -> VerlConfig:
    """Read the block of a file, with $VARIABLES expanded; UsageError explains what is wrong with it."""
    if not path:
        advice = "set actor_rollout_ref.rollout.agent.agent_loop_config_path to a file with a rollbook: block"
        raise UsageError(f"which environments? {advice}")
    try:
        content: JSON = yaml.safe_load(os.path.expandvars(Path(path).read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(content, dict) or "rollbook" not in content:
        raise UsageError(f"{path}: no rollbook: block; write `rollbook:` and beneath it `environments:`")
    try:
        block = msgspec.convert(content["rollbook"], VerlConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: rollbook: {error}") from None
    if sum(map(bool, (block.environments, block.blend, block.gym))) != 1:
        raise UsageError(f"{path}: rollbook: give exactly one of environments, blend and gym")
    return block


ROW_COLUMN = "gym_row"
DO_SAMPLE_COLUMN, SAMPLES_COLUMN = "__do_sample__", "__rollout_n__"
"""Columns in which verl sets for single rows whether, and how often, they are sampled."""


def read_sampling(rollout: Any, *, validate: bool, greedy: bool = False) -> Sampling:
    """Return how rows are sampled: as verl is configured for training or validation, or greedily."""
    settings = rollout.val_kwargs if validate else rollout
    tokens = int(rollout.response_length)
    if greedy:
        return Sampling(0.0, 1.0, tokens)
    extra: dict[str, JSON] = {"top_k": int(settings.top_k)} if int(settings.get("top_k", -1)) > 0 else {}
    return Sampling(float(settings.temperature), float(settings.top_p), tokens, extra)


def rebuild_row(fields: Mapping[str, Any]) -> dict[str, JSON]:
    """Return the row that a prompt of verl came from: as GymDataset stores it, else made of verl's own columns."""
    if ROW_COLUMN in fields:
        row: dict[str, JSON] = decode(fields[ROW_COLUMN])
        return row
    info, model = to_json(fields.get("extra_info") or {}), to_json(fields.get("reward_model") or {})
    row = {**info, "messages": to_json(fields["raw_prompt"]), "answer": model.get("ground_truth")}
    if fields.get("agent_ref"):
        row["agent_ref"] = to_json(fields["agent_ref"])
    return row


def to_json(value: Any) -> JSON:
    """Convert a value that went through numpy to JSON."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple) or type(value).__name__ == "ndarray":
        return [to_json(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def find_servers(llm_client: Any) -> list[str]:
    """Return the addresses of verl's own model servers.

    A client that lists them is asked. That of verl 0.9 has nothing public for it: there it is its load balancer, an
    attribute that may go with any release, so `urls` in the block replaces all of this.
    """
    if hasattr(llm_client, "get_addresses"):
        addresses = llm_client.get_addresses()
    else:
        balancer = getattr(llm_client, "load_balancer", None) or getattr(llm_client, "_load_balancer", None)
        if balancer is None:
            raise UsageError("verl's client names no load balancer; give the servers as `urls` in the rollbook: block")
        import ray

        addresses = ray.get(balancer.get_all_servers.remote(), timeout=60)
    if not addresses:
        raise UsageError("verl has no model server yet; give them as `urls` in the rollbook: block")
    return [address if "://" in address else f"http://{address}/v1" for address in map(str, addresses)]


def format_version(step: Any) -> str | None:
    """Return a step of the trainer as the version of its weights."""
    return None if step is None else str(int(step))
