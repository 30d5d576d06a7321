"""What verl's configuration and rows ask for: environments, sampling, tasks, servers, and the verl version.

The environments are in the `rollbook:` block of the file that verl's `agent_loop_config_path` names. verl's contracts
change between releases, so a version that is not known to work is refused at the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import yaml

from rollbook.core import JSON, Sampling, Task, decode, encode
from rollbook.engine import Entry, OnFailure, read_blend
from rollbook.errors import UsageError
from rollbook.trainers.task_runner import TaskRunner

VERL_PREFIX, TESTED_VERSION = "0.9.", "0.9.1"


def check_verl() -> str:
    """The version that is installed; UsageError if there is none, or one that is not known to work."""
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise UsageError(f"verl is not installed here: pip install verl=={TESTED_VERSION}") from None
    if not found.startswith(VERL_PREFIX):
        raise UsageError(
            f"verl {found} is installed, and this works with {VERL_PREFIX}x: pip install verl=={TESTED_VERSION}"
        )
    return found


class VerlConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is played, by whom, and what becomes of failures. One of `environments`, `blend` and `gym` says what."""

    environments: list[Entry] = []
    """Each with `env` as on the command line, `name` as rows have it in `agent_ref`, `data` where `env` needs it."""
    blend: str | None = None
    """A blend's file, beside this one."""
    gym: list[str] = []
    """Configurations of a NeMo Gym checkout; its own agents' names route the rows."""
    urls: list[str] = []
    """Endpoints; those of verl's own servers unless given."""
    model_name: str = ""
    on_failure: OnFailure = "raise"
    continue_tokens: bool = False
    concurrency: int = 256
    """Rollouts in flight at once, for each environment."""
    attempts: dict[str, int] = {}
    seed: int = 0
    pad_id: int | None = None
    """That of the model's tokenizer unless given."""

    def entries(self, folder: Path) -> dict[str, Entry]:
        """The environments by the names that rows have for them."""
        if self.gym:
            more = f"?config_paths={encode(self.gym[1:]).decode()}" if self.gym[1:] else ""
            return {"gym": Entry(env=f"gym:{self.gym[0]}{more}")}
        listed = read_blend_entries(folder / self.blend) if self.blend else self.environments
        named = {entry.name or entry.env: entry for entry in listed}
        if len(named) < len(listed):
            raise UsageError("two environments of the rollbook: block have one name; give each a name of its own")
        return named


def read_blend_entries(path: Path) -> list[Entry]:
    """The environments of a blend, with the files that it names found from here."""
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
    """The block in a file, its $VARIABLES filled in; UsageError says what is wrong with it."""
    if not path:
        way = "set actor_rollout_ref.rollout.agent.agent_loop_config_path to a file with a rollbook: block"
        raise UsageError(f"which environments? {way}")
    try:
        read: JSON = yaml.safe_load(os.path.expandvars(Path(path).read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(read, dict) or "rollbook" not in read:
        raise UsageError(f"{path}: no rollbook: block; write `rollbook:` and beneath it `environments:`")
    try:
        block = msgspec.convert(read["rollbook"], VerlConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: rollbook: {error}") from None
    if sum(map(bool, (block.environments, block.blend, block.gym))) != 1:
        raise UsageError(f"{path}: rollbook: give exactly one of environments, blend and gym")
    return block


ROW_COLUMN = "gym_row"
DO_SAMPLE_COLUMN, SAMPLES_COLUMN = "__do_sample__", "__rollout_n__"
"""Columns in which verl says of single rows whether, and how often, they are sampled."""


def read_sampling(rollout: Any, *, validate: bool, greedy: bool = False) -> Sampling:
    """How rows are sampled: as verl is configured for training or validation, or greedily."""
    own = rollout.val_kwargs if validate else rollout
    tokens = int(rollout.response_length)
    if greedy:
        return Sampling(0.0, 1.0, tokens)
    extra: dict[str, JSON] = {"top_k": int(own.top_k)} if int(own.get("top_k", -1)) > 0 else {}
    return Sampling(float(own.temperature), float(own.top_p), tokens, extra)


def rebuild_row(fields: Mapping[str, Any]) -> dict[str, JSON]:
    """The row that a prompt of verl came from: as GymDataset keeps it, else made of verl's own columns."""
    if ROW_COLUMN in fields:
        row: dict[str, JSON] = decode(fields[ROW_COLUMN])
        return row
    info, model = to_json(fields.get("extra_info") or {}), to_json(fields.get("reward_model") or {})
    row = {**info, "messages": to_json(fields["raw_prompt"]), "answer": model.get("ground_truth")}
    if fields.get("agent_ref"):
        row["agent_ref"] = to_json(fields["agent_ref"])
    return row


def to_json(value: Any) -> JSON:
    """A value that went through numpy, as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple) or type(value).__name__ == "ndarray":
        return [to_json(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def route_prompts(runner: TaskRunner, prompts: Sequence[Mapping[str, Any]]) -> list[tuple[str, Task]]:
    """The environment and the task of every prompt, in their order."""
    return runner.route_rows([rebuild_row(fields) for fields in prompts])


def find_servers(llm_client: Any) -> list[str]:
    """Where verl's own model servers listen: its load balancer knows them by their addresses."""
    balancer = getattr(llm_client, "_load_balancer", None)
    if balancer is None:
        raise UsageError("verl's client names no load balancer; give the servers as `urls` in the rollbook: block")
    import ray

    found = ray.get(balancer.get_all_servers.remote(), timeout=60)
    if not found:
        raise UsageError("verl's load balancer knows no server yet; give them as `urls` in the rollbook: block")
    return [address if "://" in address else f"http://{address}/v1" for address in map(str, found)]


def format_version(step: Any) -> str | None:
    """A step of the trainer as the version of its weights."""
    return None if step is None else str(int(step))
