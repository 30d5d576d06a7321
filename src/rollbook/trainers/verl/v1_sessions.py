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

from rollbook.core import Task
from rollbook.engine import Group, GroupCounts, GroupPolicy
from rollbook.errors import TokenError, UsageError
from rollbook.trainers.formats import Sample, sample_of
from rollbook.trainers.task_runner import BackgroundLoop, TaskRunner
from rollbook.trainers.verl.batches import Prompt, Trajectory, trajectories
from rollbook.trainers.verl.config import DO_SAMPLE_COLUMN, SAMPLES_COLUMN, format_version, read_sampling, route_prompts


def read_prompts(batch: Any) -> tuple[bool, list[Prompt]]:
    """Whether a TensorDict of verl's is for validation, and its prompts."""
    columns = dict(batch.items())
    validate = bool(_get_element(columns.pop("validate", None), 0) or False)
    steps = columns.pop("global_steps", None)
    found = []
    for place in range(len(batch)):
        fields = {name: _get_element(column, place) for name, column in columns.items()}
        uid = str(fields.pop("uid"))
        if "_" in uid:
            raise UsageError(f"uid {uid}: verl takes what is before the first _ for the uid")
        found.append(Prompt(uid, fields, int(_get_element(steps, place) or 0)))
    return validate, found


def _get_element(column: Any, place: int) -> Any:
    """One element of a column, of whatever kind it is; one value may stand for all of them."""
    if isinstance(column, NonTensorStack):
        return column[place].data
    if isinstance(column, NonTensorData):
        return column.data
    if isinstance(column, torch.Tensor):
        return column[place] if column.dim() else column.item()
    return column


async def set_status(uid: str, partition: str, status: str) -> None:
    """Say how far a prompt is: running, finished or failure."""
    await transfer_queue.async_kv_put(key=uid, partition_id=partition, tag={"status": status})


async def publish_trajectories(batch: Sequence[Trajectory], partition: str) -> None:
    """Put the trajectories of one rollout."""
    await transfer_queue.async_kv_batch_put(
        keys=[one.key for one in batch],
        fields=list_of_dict_to_tensordict([_to_tensors(one) for one in batch]),
        tags=[one.tag for one in batch],
        partition_id=partition,
    )


def _to_tensors(trajectory: Trajectory) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) and value.dtype != object else value
        for name, value in trajectory.fields.items()
    }


class PromptSessions:
    """Begins prompts and returns; what broke one of them is raised with the next batch."""

    def __init__(self, runner: TaskRunner, background: BackgroundLoop, policy: GroupPolicy, rollout: Any) -> None:
        self._players, self._background = runner, background
        self._policy, self._rollout = policy, rollout
        self.counts = GroupCounts()
        self._under_way: set[Future[None]] = set()
        self._broken: BaseException | None = None

    def begin(self, prompts: Any) -> None:
        """Begin every prompt of a batch."""
        if self._broken is not None:
            raise self._broken
        validate, asked = read_prompts(prompts)
        found = route_prompts(self._players, [prompt.fields for prompt in asked])
        self._background.run(self._set_version(asked))
        for prompt, (name, task) in zip(asked, found, strict=True):
            future = self._background.start(self._run_prompt(prompt, name, task, validate))
            self._under_way.add(future)
            future.add_done_callback(self._on_done)

    def _on_done(self, future: Future[None]) -> None:
        """Nobody awaits it: what broke, also the queue itself, is kept for the next batch."""
        self._under_way.discard(future)
        if not future.cancelled() and future.exception() is not None:
            self._broken = self._broken or future.exception()

    async def _set_version(self, asked: list[Prompt]) -> None:
        self._players.resume(format_version(asked[0].global_steps) if asked else None)

    async def _run_prompt(self, prompt: Prompt, name: str, task: Task, validate: bool) -> None:
        """All sessions of one prompt; what it came to is said once none of them is under way any more."""
        partition = "val" if validate else "train"
        await set_status(prompt.uid, partition, "running")
        ended = "failure"
        try:
            ended = await self._run_sessions(prompt, name, task, validate, partition)
        except Exception as error:  # noqa: BLE001 - known before the status is: then verl may come with its next batch
            self._broken = self._broken or error
        finally:
            await set_status(prompt.uid, partition, ended)

    async def _run_sessions(self, prompt: Prompt, name: str, task: Task, validate: bool, partition: str) -> str:
        own = self._rollout.val_kwargs if validate else self._rollout
        count = int(prompt.fields.get(SAMPLES_COLUMN, own.n))
        greedy = not validate and not prompt.fields.get(DO_SAMPLE_COLUMN, True)
        sampling = read_sampling(self._rollout, validate=validate, greedy=greedy)
        self.counts.drawn += 1
        rollouts = await asyncio.gather(*(self._players.run_task(name, task, sampling) for _ in range(count)))
        if not self._policy.passes(Group(task, rollouts), 0, self.counts):
            return "failure"
        kept = {key: value for key, value in prompt.fields.items() if key not in (SAMPLES_COLUMN, DO_SAMPLE_COLUMN)}
        told = msgspec.structs.replace(prompt, fields=kept)
        samples = list(enumerate(map(sample_of, rollouts)))
        fit = [one for one in samples if not (validate and one[1].masked)]  # verl would validate it with a reward of 0
        made = [trajectories(told, session, sample) for session, sample in fit]
        hollow = [sample for (_, sample), several in zip(fit, made, strict=True) if not several and not sample.masked]
        if hollow and not validate:
            return self._refuse_empty(hollow[0])
        for several in filter(None, made):
            await publish_trajectories(several, partition)
        return "finished" if any(made) else "failure"

    def _refuse_empty(self, sample: Sample) -> str:
        """A rollout was scored though nothing was sampled: verl has no place for it, and its group would be short."""
        if self._policy.on_failure in ("raise", "retry"):
            (task, number), ended = sample.rollout.key, sample.rollout.ended
            way = "leave such prompts out, or use on_failure drop_group"
            raise TokenError(f"rollout {task}#{number} sampled no token ({ended or 'an empty answer'}): {way}")
        self.counts.given -= 1
        self.counts.dropped_failed += 1
        return "failure"
