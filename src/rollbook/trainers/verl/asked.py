"""What verl's configuration and its rows ask for: sampling, tasks, and where its model servers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollbook.core.json import JSON, decode
from rollbook.core.manifest import Sampling
from rollbook.core.task import Task
from rollbook.errors import UsageError
from rollbook.trainers.players import Players

ROW = "gym_row"
GREEDY, SAMPLES = "__do_sample__", "__rollout_n__"
"""Columns in which verl says of single rows whether, and how often, they are sampled."""


def sampling_of(rollout: Any, *, validate: bool, greedy: bool = False) -> Sampling:
    """How rows are sampled: as verl is configured for training or validation, or greedily."""
    own = rollout.val_kwargs if validate else rollout
    tokens = int(rollout.response_length)
    if greedy:
        return Sampling(0.0, 1.0, tokens)
    extra: dict[str, JSON] = {"top_k": int(own.top_k)} if int(own.get("top_k", -1)) > 0 else {}
    return Sampling(float(own.temperature), float(own.top_p), tokens, extra)


def row_of(fields: Mapping[str, Any]) -> dict[str, JSON]:
    """The row that a prompt of verl came from: as GymDataset keeps it, else made of verl's own columns."""
    if ROW in fields:
        row: dict[str, JSON] = decode(fields[ROW])
        return row
    info, model = plain(fields.get("extra_info") or {}), plain(fields.get("reward_model") or {})
    row = {**info, "messages": plain(fields["raw_prompt"]), "answer": model.get("ground_truth")}
    if fields.get("agent_ref"):
        row["agent_ref"] = plain(fields["agent_ref"])
    return row


def plain(value: Any) -> JSON:
    """A value that went through numpy, as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) or type(value).__name__ == "ndarray":
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def routed(players: Players, prompts: Sequence[Mapping[str, Any]]) -> list[tuple[str, Task]]:
    """The environment and the task of every prompt, in their order."""
    return players.routed([row_of(fields) for fields in prompts])


def addresses(llm_client: Any) -> list[str]:
    """Where verl's own model servers listen: its load balancer knows them by their addresses."""
    balancer = getattr(llm_client, "_load_balancer", None)
    if balancer is None:
        raise UsageError("verl's client names no load balancer; give the servers as `urls` in the rollbook: block")
    import ray

    found = ray.get(balancer.get_all_servers.remote(), timeout=60)
    if not found:
        raise UsageError("verl's load balancer knows no server yet; give them as `urls` in the rollbook: block")
    return [address if "://" in address else f"http://{address}/v1" for address in map(str, found)]


def version_of(step: Any) -> str | None:
    """A step of the trainer as the version of its weights."""
    return None if step is None else str(int(step))
