"""Rollouts as they come out of an environment, made of ids."""

from __future__ import annotations

from rollbook.core import Failure, Rollout, Score, Task, Turn


def played(
    *ids: list[int], reward: float | None, name: str = "t", sample: int = 0, version: str | None = None
) -> Rollout:
    """A rollout of turns: a prompt, what was sampled on it, the next prompt, and so on. Without a reward it failed."""
    turns = [
        Turn(prompt, sampled, [-0.5 - i for i in range(len(sampled))], len(prompt), len(sampled), model_version=version)
        for prompt, sampled in zip(ids[::2], ids[1::2], strict=True)
    ]
    rollout = Rollout(task=Task(name, "?"), sample=sample, seed=sample, turns=turns)
    if reward is None:
        rollout.failure = Failure("verifier_error", "data", "verify", "broke")
    else:
        rollout.score = Score(reward, parts={"style": reward / 2})
    return rollout
