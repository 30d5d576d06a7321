"""`RollbookAgentLoopManager`: what verl is configured to generate sequences with. Needs verl."""

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
from rollbook.engine import GroupCounts, GroupPolicy, group_shortfall
from rollbook.errors import UsageError
from rollbook.trainers.formats import sample_of
from rollbook.trainers.task_runner import BackgroundLoop, TaskRunner
from rollbook.trainers.verl.batches import pad_batch
from rollbook.trainers.verl.config import (
    DO_SAMPLE_COLUMN,
    check_verl,
    find_servers,
    format_version,
    read_config,
    read_sampling,
    route_prompts,
)

if TYPE_CHECKING:
    from rollbook.trainers.verl.v1_sessions import PromptSessions


class RollbookAgentLoopManager:
    """For `actor_rollout_ref.rollout.agent.agent_loop_manager_class`; it has no workers of verl's."""

    def __init__(
        self,
        config: Any,
        llm_client: Any,
        teacher_client: Any = None,
        reward_loop_worker_handles: Any = None,
    ) -> None:
        check_verl()
        if teacher_client is not None:
            raise UsageError("rollbook: distillation from a teacher is not done here; leave the teacher out")
        self._rollout = config.actor_rollout_ref.rollout
        self._config, self._echoes = config, reward_loop_worker_handles is None
        path = self._rollout.agent.get("agent_loop_config_path")
        self._block = read_config(path)
        self._policy = GroupPolicy(self._block.on_failure)
        self._background = BackgroundLoop("rollbook-verl")
        self._players = TaskRunner(
            self._block.entries(Path(path).parent),
            self._block.urls or find_servers(llm_client),
            model_name=self._block.model_name,
            on_failure=self._block.on_failure,
            continue_tokens=self._block.continue_tokens,
            seed=self._block.seed,
            concurrency=self._block.concurrency,
            attempts=self._block.attempts,
        )
        self._sessions: PromptSessions | None = None

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> RollbookAgentLoopManager:
        """As verl calls it."""
        return cls(*args, **kwargs)

    @property
    def counts(self) -> GroupCounts:
        """What became of every group of V1 since the start."""
        return self._sessions.counts if self._sessions else GroupCounts()

    def close(self) -> None:
        """End every rollout and every environment."""
        self._background.run(self._players.__aexit__(None, None, None))
        self._background.close()

    def generate_sequences(self, prompts: Any) -> Any:
        """V0: a DataProto for a DataProto, in its order. V1: at once nothing; results go to the TransferQueue."""
        return self._generate_batch(prompts) if isinstance(prompts, DataProto) else self._begin_sessions(prompts)

    def _generate_batch(self, prompts: DataProto) -> DataProto:
        if self._block.on_failure in ("drop_group", "mask"):
            why = "verl's V0 takes back exactly the rows it gave, and computes their groups itself"
            raise UsageError(f"on_failure: {self._block.on_failure}: {why}; use raise or retry, or trainer.use_v1=true")
        others, meta = prompts.non_tensor_batch, prompts.meta_info
        rows = [{key: values[place] for key, values in others.items()} for place in range(len(prompts))]
        validate = bool(meta.get("validate", False))
        found = route_prompts(self._players, rows)
        asked = [
            (name, task, read_sampling(self._rollout, validate=validate, greedy=not row.get(DO_SAMPLE_COLUMN, True)))
            for (name, task), row in zip(found, rows, strict=True)
        ]
        rollouts = self._background.run(self._run_tasks(asked, meta.get("global_steps")))
        if any(rollout.failure for rollout in rollouts):
            raise group_shortfall(rollouts)
        return self._make_proto(rollouts, others, meta)

    async def _run_tasks(self, tasks: list[tuple[str, Task, Sampling]], step: Any) -> list[Rollout]:
        self._players.resume(format_version(step))
        return await asyncio.gather(*(self._players.run_task(*one) for one in tasks))

    def _make_proto(self, rollouts: list[Rollout], others: Mapping[str, Any], meta: Mapping[str, Any]) -> DataProto:
        lengths = int(self._rollout.prompt_length), int(self._rollout.response_length)
        made = pad_batch([sample_of(rollout) for rollout in rollouts], self._find_pad_id(), *lengths)
        echoed = dict(others) if self._echoes else {}
        prompt = {"raw_prompt": others["raw_prompt"]} if "raw_prompt" in others else {}
        kept = {"global_steps": meta["global_steps"]} if "global_steps" in meta else {}
        return DataProto.from_dict(
            tensors={name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in made.tensors.items()},
            non_tensors={**echoed, **prompt, **made.others},
            meta_info={**kept, **made.meta_info},
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
            self._sessions = PromptSessions(self._players, self._background, self._policy, self._rollout)
        self._sessions.begin(prompts)
