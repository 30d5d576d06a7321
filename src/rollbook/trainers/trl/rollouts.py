"""`Rollouts`: TRL's `rollout_func`, carried out by an environment against the endpoint that serves the weights.

`PromptIndex` turns an environment's tasks into rows of TRL's dataset, and finds them again by what TRL hands back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

import msgspec

from rollbook.core import JSON, Function, Message, Rollout, Sampling, Task, ToolCall, as_messages, encode
from rollbook.engine import Entry, OnFailure, group_shortfall
from rollbook.errors import UsageError
from rollbook.trainers.formats import REWARD_COLUMN, sample_of, to_trl
from rollbook.trainers.rows import make_environment
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
                    f"tasks {other.id} and {task.id} have one prompt and two answers: TRL gives us the prompt"
                )

    def rows(self) -> list[dict[str, JSON]]:
        """One row a task: `prompt` in messages, and `task`, its id."""
        return [{"prompt": msgspec.to_builtins(task.messages), "task": task.id} for task in self._tasks]

    def find_by_prompt(self, prompt: Sequence[Mapping[str, JSON]] | str) -> Task:
        """The task of a prompt."""
        given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        task = self._by_prompt.get(encode(read_messages(given)))
        if task is None:
            raise UsageError(f"a prompt of no task: {str(given)[:80]}; train on the dataset of rows()")
        return task

    def find_by_id(self, name: str) -> Task:
        """The task of an id."""
        if name not in self._by_id:
            raise UsageError(f"no task is called {name!r}; train on the dataset of rows()")
        return self._by_id[name]


def read_messages(messages: Sequence[Mapping[str, JSON]]) -> list[Message]:
    """Messages as datasets and TRL hold them: absent fields as None, arguments of calls as objects."""
    return as_messages([_clean_message(dict(one)) for one in messages])


def _clean_message(one: dict[str, JSON]) -> dict[str, JSON]:
    calls = one.pop("tool_calls", None)
    kept = {name: value for name, value in one.items() if value is not None and name in Message.__struct_fields__}
    return {**kept, "tool_calls": [_clean_call(call) for call in calls]} if calls else kept


def _clean_call(call: Mapping[str, JSON]) -> JSON:
    function = call.get("function", call)
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    made = ToolCall(str(call.get("id") or uuid4().hex), Function(str(function["name"]), text))
    return msgspec.to_builtins(made)


UNSET_VALUES: Mapping[str, tuple[JSON, ...]] = {
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}
"""TRL's further arguments of sampling, and what of each means that nothing is asked for."""


class Rollouts:
    """`GRPOTrainer(rollout_func=rollouts, reward_funcs=rollouts.reward, ...)`, on a dataset of the rows of `rows()`.

    Sampled as the trainer's own arguments say. `masked` counts the rollouts that failed and were masked.
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
        seed: int = 0,
    ) -> None:
        if on_failure == "drop_group":
            raise UsageError(
                "on_failure='drop_group': TRL takes back as many rows as it gave; use mask, raise or retry"
            )
        entry = Entry(env=env, data=data, limits=limits or {})
        self._prompts = PromptIndex(make_environment(entry).tasks(), limit)
        self._masks, self.masked = on_failure == "mask", 0
        self._background = BackgroundLoop("rollbook-trl")
        self._players = TaskRunner(
            {env: entry},
            [model] if isinstance(model, str) else model,
            on_failure=on_failure,
            continue_tokens=continue_tokens,
            seed=seed,
            concurrency=concurrency,
        )
        self._env = env
        self.__name__ = "rollbook"  # TRL asks functions for it

    def rows(self) -> list[dict[str, JSON]]:
        """The rows of the dataset to train on."""
        return self._prompts.rows()

    def close(self) -> None:
        """End every rollout and the environment."""
        self._background.run(self._players.__aexit__(None, None, None))
        self._background.close()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[JSON]]:
        """One rollout for every prompt, in their order."""
        tasks = [self._prompts.find_by_prompt(prompt) for prompt in prompts]
        rollouts = self._background.run(
            self._run_tasks(tasks, read_sampling(trainer.args), str(trainer.state.global_step))
        )
        failed = sum(rollout.failure is not None for rollout in rollouts)
        if failed and not self._masks:
            raise group_shortfall(rollouts)
        self.masked += failed
        return to_trl([sample_of(rollout) for rollout in rollouts], int(trainer.processing_class.pad_token_id))

    async def _run_tasks(self, tasks: list[Task], sampling: Sampling, version: str) -> list[Rollout]:
        self._players.resume(version)
        return await asyncio.gather(*(self._players.run_task(self._env, task, sampling) for task in tasks))

    def reward(self, **columns: Any) -> list[float | None]:
        """The rewards that came with the rollouts; TRL leaves None out of a group's mean and spread."""
        given: list[float | None] = columns[REWARD_COLUMN]
        return given


def read_sampling(args: Any) -> Sampling:
    """What TRL's arguments ask for, in the words of vLLM."""
    extra: dict[str, JSON] = {name: getattr(args, name, None) for name in UNSET_VALUES}
    given = {name: value for name, value in extra.items() if value not in UNSET_VALUES[name]}
    own = getattr(args, "generation_kwargs", None) or {}
    return Sampling(float(args.temperature), float(args.top_p), int(args.max_completion_length), extra={**given, **own})
