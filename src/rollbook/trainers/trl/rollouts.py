"""`Rollouts`: TRL's `rollout_func`, played by an environment against the endpoint that serves the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rollbook.collect.blend import Entry
from rollbook.collect.group import shortfall
from rollbook.collect.policy import OnFailure
from rollbook.core.json import JSON
from rollbook.core.manifest import Sampling
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.errors import UsageError
from rollbook.trainers.background import Background
from rollbook.trainers.players import Players
from rollbook.trainers.rows import environment_of
from rollbook.trainers.sample import sample_of
from rollbook.trainers.trl.export import REWARD, exported
from rollbook.trainers.trl.prompts import Prompts

NOTHING: Mapping[str, tuple[JSON, ...]] = {
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
        self._prompts = Prompts(environment_of(entry).tasks(), limit)
        self._masks, self.masked = on_failure == "mask", 0
        self._background = Background("rollbook-trl")
        self._players = Players(
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
        tasks = [self._prompts.asked(prompt) for prompt in prompts]
        rollouts = self._background.run(self._play(tasks, sampling_of(trainer.args), str(trainer.state.global_step)))
        failed = sum(rollout.failure is not None for rollout in rollouts)
        if failed and not self._masks:
            raise shortfall(rollouts)
        self.masked += failed
        return exported([sample_of(rollout) for rollout in rollouts], int(trainer.processing_class.pad_token_id))

    async def _play(self, tasks: list[Task], sampling: Sampling, version: str) -> list[Rollout]:
        self._players.resume(version)
        return await asyncio.gather(*(self._players.play(self._env, task, sampling) for task in tasks))

    def reward(self, **columns: Any) -> list[float | None]:
        """The rewards that came with the rollouts; TRL leaves None out of a group's mean and spread."""
        given: list[float | None] = columns[REWARD]
        return given


def sampling_of(args: Any) -> Sampling:
    """What TRL's arguments ask for, in the words of vLLM."""
    extra: dict[str, JSON] = {name: getattr(args, name, None) for name in NOTHING}
    given = {name: value for name, value in extra.items() if value not in NOTHING[name]}
    own = getattr(args, "generation_kwargs", None) or {}
    return Sampling(float(args.temperature), float(args.top_p), int(args.max_completion_length), extra={**given, **own})
