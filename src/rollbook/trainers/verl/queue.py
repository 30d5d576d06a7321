"""verl's TransferQueue, as its V1 trainer reads it: prompts with a status, trajectories with fields and tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue
from tensordict import NonTensorData, NonTensorStack
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from rollbook.errors import UsageError
from rollbook.trainers.verl.trajectories import Prompt, Trajectory


def prompts_of(batch: Any) -> tuple[bool, list[Prompt]]:
    """Whether a TensorDict of verl's is for validation, and its prompts."""
    columns = dict(batch.items())
    validate = bool(_at(columns.pop("validate", None), 0) or False)
    steps = columns.pop("global_steps", None)
    found = []
    for place in range(len(batch)):
        fields = {name: _at(column, place) for name, column in columns.items()}
        uid = str(fields.pop("uid"))
        if "_" in uid:
            raise UsageError(f"uid {uid}: verl takes what is before the first _ for the uid")
        found.append(Prompt(uid, fields, int(_at(steps, place) or 0)))
    return validate, found


def _at(column: Any, place: int) -> Any:
    """One element of a column, of whatever kind it is; one value may stand for all of them."""
    if isinstance(column, NonTensorStack):
        return column[place].data
    if isinstance(column, NonTensorData):
        return column.data
    if isinstance(column, torch.Tensor):
        return column[place] if column.dim() else column.item()
    return column


async def status(uid: str, partition: str, word: str) -> None:
    """Say how far a prompt is: running, finished or failure."""
    await transfer_queue.async_kv_put(key=uid, partition_id=partition, tag={"status": word})


async def publish(several: Sequence[Trajectory], partition: str) -> None:
    """Put the trajectories of one rollout."""
    await transfer_queue.async_kv_batch_put(
        keys=[one.key for one in several],
        fields=list_of_dict_to_tensordict([_tensors(one) for one in several]),
        tags=[one.tag for one in several],
        partition_id=partition,
    )


def _tensors(one: Trajectory) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) and value.dtype != object else value
        for name, value in one.fields.items()
    }
