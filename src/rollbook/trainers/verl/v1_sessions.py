"""verl's V1: the sessions of many prompts at once, each put into the TransferQueue when its prompt has ended.

The V1 trainer reads prompts with a status, trajectories with fields and tags. Needs verl and its transfer_queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import torch
import transfer_queue
from tensordict import NonTensorData, NonTensorStack
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from rollbook.core import Group, Rollout, Task
from rollbook.engine import GroupCounts, GroupPolicy
from rollbook.errors import Shortfall, UsageError
from rollbook.trainers.formats import sample_of
from rollbook.trainers.rows import MissingReason, RowName, RowsMissing, find_group_side, find_missing
from rollbook.trainers.task_runner import BackgroundLoop, TaskRunner
from rollbook.trainers.verl.batches import Prompt, Trajectory, trajectories
from rollbook.trainers.verl.config import DO_SAMPLE_COLUMN, SAMPLES_COLUMN, format_version, read_sampling, rebuild_row


def read_prompts(batch: Any) -> tuple[bool, list[Prompt]]:
    """Return whether a TensorDict of verl's is for validation, and its prompts."""
    columns = dict(batch.items())
    validate = bool(_get_element(columns.pop("validate", None), 0) or False)
    steps = columns.pop("global_steps", None)
    prompts = []
    for index in range(len(batch)):
        fields = {name: _get_element(column, index) for name, column in columns.items()}
        uid = str(fields.pop("uid"))
        if "_" in uid:
            raise UsageError(f"uid {uid}: verl reads only the part before the first _ as the uid")
        prompts.append(Prompt(uid, fields, int(_get_element(steps, index) or 0)))
    return validate, prompts


def _get_element(column: Any, index: int) -> Any:
    """Return one element of a column of any kind; a single value applies to all elements."""
    if isinstance(column, NonTensorStack):
        return column[index].data
    if isinstance(column, NonTensorData):
        return column.data
    if isinstance(column, torch.Tensor):
        return column[index] if column.dim() else column.item()
    return column


async def set_status(uid: str, partition: str, status: str) -> None:
    """Set the status of a prompt: running, finished or failure."""
    await transfer_queue.async_kv_put(key=uid, partition_id=partition, tag={"status": status})


async def publish_trajectories(batch: Sequence[Trajectory], partition: str) -> None:
    """Put the trajectories of one rollout into the queue."""
    await transfer_queue.async_kv_batch_put(
        keys=[trajectory.key for trajectory in batch],
        fields=list_of_dict_to_tensordict([_to_tensors(trajectory) for trajectory in batch]),
        tags=[trajectory.tag for trajectory in batch],
        partition_id=partition,
    )


def _to_tensors(trajectory: Trajectory) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) and value.dtype != object else value
        for name, value in trajectory.fields.items()
    }


class PromptSessions:
    """Begins prompts and returns; errors, and the prompts that did not come back, are raised with the next batch."""

    def __init__(self, runner: TaskRunner, background: BackgroundLoop, policy: GroupPolicy, rollout: Any) -> None:
        self._runner, self._background = runner, background
        self._policy, self._rollout = policy, rollout
        self.counts = GroupCounts()
        self._in_progress: set[Future[None]] = set()
        self._broken: BaseException | None = None
        self._missing: dict[RowName, MissingReason] = {}

    def begin(self, prompts: Any) -> None:
        """Begin every prompt of a batch."""
        if self._broken is not None:
            raise self._broken
        if self._missing:
            raise RowsMissing(self.counts.drawn, self._missing)
        validate, requested = read_prompts(prompts)
        routed = self._runner.route_rows([rebuild_row(prompt.fields) for prompt in requested])
        self._background.run(self._set_version(requested))
        for prompt, (name, task) in zip(requested, routed, strict=True):
            future = self._background.start(self._run_prompt(prompt, name, task, validate))
            self._in_progress.add(future)
            future.add_done_callback(self._on_done)

    def _on_done(self, future: Future[None]) -> None:
        """The future is never awaited: keep its error, also one of the queue itself, for the next batch."""
        self._in_progress.discard(future)
        if not future.cancelled() and future.exception() is not None:
            self._broken = self._broken or future.exception()

    async def _set_version(self, prompts: list[Prompt]) -> None:
        self._runner.resume(format_version(prompts[0].global_steps) if prompts else None)

    async def _run_prompt(self, prompt: Prompt, name: str, task: Task, validate: bool) -> None:
        """Run all sessions of one prompt; set its status once none of them is in progress."""
        partition = "val" if validate else "train"
        await set_status(prompt.uid, partition, "running")
        status = "failure"
        try:
            status = await self._run_sessions(prompt, name, task, validate, partition)
        except Shortfall as error:  # stored before the status is set: then verl may come with its next batch
            self._missing[prompt.uid] = MissingReason(find_group_side(error), f"task {task.id}: {error}")
        except Exception as error:  # noqa: BLE001 - stored likewise
            self._broken = self._broken or error
        finally:
            await set_status(prompt.uid, partition, status)

    async def _run_sessions(self, prompt: Prompt, name: str, task: Task, validate: bool, partition: str) -> str:
        settings = self._rollout.val_kwargs if validate else self._rollout
        count = int(prompt.fields.get(SAMPLES_COLUMN, settings.n))
        greedy = not validate and not prompt.fields.get(DO_SAMPLE_COLUMN, True)
        sampling = read_sampling(self._rollout, validate=validate, greedy=greedy)
        self.counts.drawn += 1
        outcomes = await asyncio.gather(*(self._runner.try_task(name, task, sampling) for _ in range(count)))
        rollouts = [outcome for outcome in outcomes if isinstance(outcome, Rollout)]
        if len(rollouts) < count:
            raise RowsMissing(count, find_missing(outcomes))
        if not self._policy.passes(Group(task, rollouts), 0, self.counts):
            return "failure"
        fields = {key: value for key, value in prompt.fields.items() if key not in (SAMPLES_COLUMN, DO_SAMPLE_COLUMN)}
        cleaned = msgspec.structs.replace(prompt, fields=fields)
        samples = list(enumerate(map(sample_of, rollouts)))
        fit = [
            pair for pair in samples if not (validate and pair[1].masked)
        ]  # verl would validate it with a reward of 0
        batches = [trajectories(cleaned, session, sample) for session, sample in fit]
        for batch in filter(None, batches):
            await publish_trajectories(batch, partition)
        return "finished" if any(batches) else "failure"
