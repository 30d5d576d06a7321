"""`Rollouts`: TRL's `rollout_func`, run by an environment against the endpoint that serves the weights.

`PromptIndex` turns an environment's tasks into rows of TRL's dataset, and finds them again by what TRL passes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

import msgspec

from rollbook.core import JSON, Function, Message, Rollout, Sampling, Task, ToolCall, as_messages, encode
from rollbook.engine import Entry, OnFailure
from rollbook.errors import UsageError
from rollbook.trainers.formats import REWARD_COLUMN, sample_of, to_trl
from rollbook.trainers.rows import MissingReason, RowsMissing, find_missing, make_environment
from rollbook.trainers.task_runner import BackgroundLoop, TaskRunner


class PromptIndex:
    """Tasks by their prompts and by their ids."""

    def __init__(self, tasks: Iterable[Task], limit: int | None = None) -> None:
        self._tasks = list(islice(tasks, limit))
        self._by_id = {task.id: task for task in self._tasks}
        self._by_prompt: dict[bytes, Task] = {}
        for task in self._tasks:
            other = self._by_prompt.setdefault(encode(task.messages), task)
            if other is not task and other.answer != task.answer:
                raise UsageError(
                    f"tasks {other.id} and {task.id} have the same prompt but other answers: TRL passes only prompts"
                )

    def rows(self) -> list[dict[str, JSON]]:
        """Return one row per task: `prompt` as messages, and `task`, its id."""
        return [{"prompt": msgspec.to_builtins(task.messages), "task": task.id} for task in self._tasks]

    def find_by_prompt(self, prompt: Sequence[Mapping[str, JSON]] | str) -> Task:
        """Return the task of a prompt."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        task = self._by_prompt.get(encode(read_messages(messages)))
        if task is None:
            raise UsageError(f"this prompt belongs to no task: {str(messages)[:80]}; train on the dataset of rows()")
        return task

    def find_by_id(self, name: str) -> Task:
        """Return the task of an id."""
        if name not in self._by_id:
            raise UsageError(f"no task is called {name!r}; train on the dataset of rows()")
        return self._by_id[name]


def read_messages(messages: Sequence[Mapping[str, JSON]]) -> list[Message]:
    """Read messages as datasets and TRL store them: absent fields as None, arguments of calls as objects."""
    return as_messages([_clean_message(dict(message)) for message in messages])


def _clean_message(message: dict[str, JSON]) -> dict[str, JSON]:
    calls = message.pop("tool_calls", None)
    fields = {name: value for name, value in message.items() if value is not None and name in Message.__struct_fields__}
    return {**fields, "tool_calls": [_clean_call(call) for call in calls]} if calls else fields


def _clean_call(call: Mapping[str, JSON]) -> JSON:
    function = call.get("function", call)
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    cleaned = ToolCall(str(call.get("id") or uuid4().hex), Function(str(function["name"]), text))
    return msgspec.to_builtins(cleaned)


UNSET_VALUES: Mapping[str, tuple[JSON, ...]] = {
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}
"""TRL's further sampling arguments, and the values of each that request nothing."""


class Rollouts:
    """`GRPOTrainer(rollout_func=rollouts, reward_funcs=rollouts.reward, ...)`, on a dataset of the rows of `rows()`.

    Sampling follows the trainer's own arguments. `masked` counts the rollouts that failed and were masked,
    `unsampled` those without a sampled token. All rows together wait `outage_s` for endpoints that do not answer.
    """

    def __init__(
        self,
        env: str,
        model: str | list[str],
        *,
        data: str | None = None,
        limit: int | None = None,
        limits: dict[str, JSON] | None = None,
        on_failure: OnFailure = "raise",
        continue_tokens: bool = False,
        concurrency: int = 64,
        outage_s: float = 300.0,
        seed: int = 0,
    ) -> None:
        if on_failure == "drop_group":
            raise UsageError("on_failure='drop_group': TRL expects a result for every row; use mask, raise or retry")
        entry = Entry(env=env, data=data, limits=limits or {})
        self._prompts = PromptIndex(make_environment(entry).tasks(), limit)
        self._masks_failures, self.masked = on_failure == "mask", 0
        self._background = BackgroundLoop("rollbook-trl")
        self._runner = TaskRunner(
            {env: entry},
            [model] if isinstance(model, str) else model,
            on_failure=on_failure,
            continue_tokens=continue_tokens,
            seed=seed,
            concurrency=concurrency,
            outage_s=outage_s,
            limits_rows=True,
        )
        self._env = env
        self.__name__ = "rollbook"  # TRL reads the name of functions

    @property
    def unsampled(self) -> int:
        """How many rollouts were scored without a sampled token: failures for a trainer."""
        return self._runner.unsampled

    def rows(self) -> list[dict[str, JSON]]:
        """Return the rows of the dataset to train on."""
        return self._prompts.rows()

    def close(self) -> None:
        """End every rollout and the environment."""
        self._background.run(self._runner.__aexit__(None, None, None))
        self._background.close()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[JSON]]:
        """Return one rollout for every prompt, in order."""
        tasks = [self._prompts.find_by_prompt(prompt) for prompt in prompts]
        outcomes = self._background.run(
            self._run_tasks(tasks, read_sampling(trainer.args), str(trainer.state.global_step))
        )
        rollouts = [outcome for outcome in outcomes if isinstance(outcome, Rollout)]
        missing = find_missing(outcomes)
        if missing and not (self._masks_failures and len(rollouts) == len(tasks)):
            raise RowsMissing(len(tasks), missing)
        self.masked += len(missing)
        return to_trl([sample_of(rollout) for rollout in rollouts], int(trainer.processing_class.pad_token_id))

    async def _run_tasks(self, tasks: list[Task], sampling: Sampling, version: str) -> list[Rollout | MissingReason]:
        self._runner.resume(version)
        return await asyncio.gather(*(self._runner.try_task(self._env, task, sampling) for task in tasks))

    def reward(self, **columns: Any) -> list[float | None]:
        """Return the rewards that came with the rollouts; TRL leaves None out of a group's mean and spread."""
        rewards: list[float | None] = columns[REWARD_COLUMN]
        return rewards


def read_sampling(args: Any) -> Sampling:
    """Return the sampling of TRL's arguments, under vLLM's names."""
    extra: dict[str, JSON] = {name: getattr(args, name, None) for name in UNSET_VALUES}
    options = {name: value for name, value in extra.items() if value not in UNSET_VALUES[name]}
    overrides = getattr(args, "generation_kwargs", None) or {}
    return Sampling(
        float(args.temperature), float(args.top_p), int(args.max_completion_length), extra={**options, **overrides}
    )
