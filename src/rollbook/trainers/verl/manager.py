"""`RollbookAgentLoopManager`: the class that verl is configured to generate sequences with. Needs verl."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from verl import DataProto

from rollbook.core import Rollout, Sampling, Task
from rollbook.engine import GroupCounts, GroupPolicy
from rollbook.errors import UsageError
from rollbook.trainers.formats import sample_of
from rollbook.trainers.rows import MissingReason, RowsMissing, find_missing
from rollbook.trainers.task_runner import BackgroundLoop, TaskRunner
from rollbook.trainers.verl.batches import RewardKeys, pad_batch
from rollbook.trainers.verl.config import (
    DO_SAMPLE_COLUMN,
    check_verl,
    find_servers,
    format_version,
    read_config,
    read_sampling,
    rebuild_row,
)

if TYPE_CHECKING:
    from rollbook.trainers.verl.v1_sessions import PromptSessions


class RollbookAgentLoopManager:
    """For `actor_rollout_ref.rollout.agent.agent_loop_manager_class`; it uses none of verl's workers."""

    def __init__(
        self, config: Any, llm_client: Any, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> None:
        check_verl()
        if teacher_client is not None:
            raise UsageError("rollbook: distillation from a teacher is not supported; leave the teacher out")
        self._rollout = config.actor_rollout_ref.rollout
        self._config, self._returns_inputs = config, reward_loop_worker_handles is None
        path = self._rollout.agent.get("agent_loop_config_path")
        self._block = read_config(path)
        self._policy = GroupPolicy(self._block.on_failure)
        self._background = BackgroundLoop("rollbook-verl")
        self._runner = TaskRunner(
            self._block.entries(Path(path).parent),
            self._block.urls or find_servers(llm_client),
            model_name=self._block.model_name,
            on_failure=self._block.on_failure,
            continue_tokens=self._block.continue_tokens,
            seed=self._block.seed,
            concurrency=self._block.concurrency,
            attempts=self._block.attempts,
            outage_s=self._block.outage_s,
            limits_rows=True,
        )
        self._reward_keys = RewardKeys()
        self._sessions: PromptSessions | None = None

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> RollbookAgentLoopManager:
        """Create the manager, as verl calls it."""
        return cls(*args, **kwargs)

    @property
    def counts(self) -> GroupCounts:
        """What became of every group of V1 since the start."""
        return self._sessions.counts if self._sessions else GroupCounts()

    @property
    def unsampled(self) -> int:
        """How many rollouts were scored without a sampled token: failures for a trainer."""
        return self._runner.unsampled

    def close(self) -> None:
        """End every rollout and every environment."""
        self._background.run(self._runner.__aexit__(None, None, None))
        self._background.close()

    def generate_sequences(self, prompts: Any) -> Any:
        """V0: return a DataProto in the order of the given one. V1: return at once; results go to the TransferQueue."""
        return self._generate_batch(prompts) if isinstance(prompts, DataProto) else self._begin_sessions(prompts)

    def _generate_batch(self, prompts: DataProto) -> DataProto:
        if self._block.on_failure in ("drop_group", "mask"):
            why = "verl's V0 expects a result for every row, and computes the groups itself"
            raise UsageError(f"on_failure: {self._block.on_failure}: {why}; use raise or retry, or trainer.use_v1=true")
        columns, meta = prompts.non_tensor_batch, prompts.meta_info
        rows = [{key: values[index] for key, values in columns.items()} for index in range(len(prompts))]
        validate = bool(meta.get("validate", False))
        routed = self._runner.route_rows([rebuild_row(row) for row in rows])
        tasks = [
            (name, task, read_sampling(self._rollout, validate=validate, greedy=not row.get(DO_SAMPLE_COLUMN, True)))
            for (name, task), row in zip(routed, rows, strict=True)
        ]
        outcomes = self._background.run(self._run_tasks(tasks, meta.get("global_steps")))
        if missing := find_missing(outcomes):
            raise RowsMissing(len(tasks), missing)
        return self._make_proto([outcome for outcome in outcomes if isinstance(outcome, Rollout)], columns, meta)

    async def _run_tasks(self, tasks: list[tuple[str, Task, Sampling]], step: Any) -> list[Rollout | MissingReason]:
        self._runner.resume(format_version(step))
        return await asyncio.gather(*(self._runner.try_task(*arguments) for arguments in tasks))

    def _make_proto(self, rollouts: list[Rollout], columns: Mapping[str, Any], meta: Mapping[str, Any]) -> DataProto:
        lengths = int(self._rollout.prompt_length), int(self._rollout.response_length)
        samples = [sample_of(rollout) for rollout in rollouts]
        keys = self._reward_keys.choose(samples, int(meta.get("global_steps", 0)) if meta.get("validate") else None)
        padded = pad_batch(samples, self._find_pad_id(), *lengths, keys)
        inputs = dict(columns) if self._returns_inputs else {}
        prompt = {"raw_prompt": columns["raw_prompt"]} if "raw_prompt" in columns else {}
        step = {"global_steps": meta["global_steps"]} if "global_steps" in meta else {}
        return DataProto.from_dict(
            tensors={name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in padded.tensors.items()},
            non_tensors={**inputs, **prompt, **padded.others},
            meta_info={**step, **padded.meta_info},
        )

    def _find_pad_id(self) -> int:
        if self._block.pad_id is not None:
            return self._block.pad_id
        from verl.utils import hf_tokenizer

        model = self._config.actor_rollout_ref.model
        tokenizer = hf_tokenizer(model.path, trust_remote_code=model.get("trust_remote_code", False))
        self._block = msgspec.structs.replace(self._block, pad_id=int(tokenizer.pad_token_id))
        return int(tokenizer.pad_token_id)

    def _begin_sessions(self, prompts: Any) -> None:
        from rollbook.trainers.verl.v1_sessions import PromptSessions

        if self._sessions is None:
            self._sessions = PromptSessions(self._runner, self._background, self._policy, self._rollout)
        self._sessions.begin(prompts)
