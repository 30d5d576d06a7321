"""The `rollbook:` block of the file that verl's `agent_loop_config_path` names."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import yaml

from rollbook.collect.blend import Entry, read_blend
from rollbook.collect.policy import OnFailure
from rollbook.core.json import JSON, encode
from rollbook.errors import UsageError


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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

    def entries(self, beside: Path) -> dict[str, Entry]:
        """The environments by the names that rows have for them."""
        if self.gym:
            more = f"?config_paths={encode(self.gym[1:]).decode()}" if self.gym[1:] else ""
            return {"gym": Entry(env=f"gym:{self.gym[0]}{more}")}
        listed = blended(beside / self.blend) if self.blend else self.environments
        named = {entry.name or entry.env: entry for entry in listed}
        if len(named) < len(listed):
            raise UsageError("two environments of the rollbook: block have one name; give each a name of its own")
        return named


def blended(path: Path) -> list[Entry]:
    """The environments of a blend, with the files that it names found from here."""
    blend = read_blend(path)
    return [
        msgspec.structs.replace(
            entry,
            env=(blend.beside(entry.env) or "") if ".py:" in entry.env else entry.env,
            data=blend.beside(entry.data),
            template=blend.beside(entry.template),
        )
        for _, entry in blend.entries
    ]


def read_block(path: str | Path | None) -> Block:
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
        block = msgspec.convert(read["rollbook"], Block)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: rollbook: {error}") from None
    if sum(map(bool, (block.environments, block.blend, block.gym))) != 1:
        raise UsageError(f"{path}: rollbook: give exactly one of environments, blend and gym")
    return block
