"""What a trainer is given of a rollout, and the formats in which trainers take it.

A `Sample` is the token sequences and the reward of one rollout; failed rollouts have an all-zero mask and no reward.
`to_openrlhf` is what OpenRLHF's `AgentExecutor.execute` returns for one prompt, `to_skyrl` what SkyRL's
`GeneratorInterface.generate` returns, `to_slime` the fields of slime's `Sample`, `to_prime_rl` those of prime-rl's
`TrainingSample`, `to_trl` what TRL's `rollout_func` returns, `to_nemo_rl` a row of NeMo RL with its message log.
verl's two contracts are in `rollbook.trainers.verl.batches`. All of them are pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import msgspec

from rollbook.core import JSON, Rollout
from rollbook.errors import TokenError, UsageError
from rollbook.tokens import Sequence, merge


class Sample(msgspec.Struct, frozen=True):
    """The sequences of a rollout; none where no token of it is known. `reward` is None where it failed."""

    rollout: Rollout
    sequences: list[Sequence]
    reward: float | None

    @property
    def masked(self) -> bool:
        """Whether it is out of its group's statistics, and nothing of it is trained."""
        return self.reward is None

    @property
    def last(self) -> Sequence | None:
        """The sequence that the rollout ended with: the only one, unless it forked."""
        return self.sequences[-1] if self.sequences else None

    @property
    def untrained(self) -> int:
        """Sampled tokens that a trainer of one sequence a rollout does not see."""
        return sum(sequence.trained for sequence in self.sequences[:-1])

    @property
    def versions(self) -> list[str]:
        """The versions of the weights that its turns were sampled with, where they are known."""
        return [turn.model_version for turn in self.rollout.turns if turn.model_version is not None]


def sample_of(rollout: Rollout) -> Sample:
    """What is trained of a rollout; TokenError if it was scored and its server reported no ids.

    >>> from rollbook.core.failure import Failure
    >>> from rollbook.core.task import Task
    >>> from rollbook.core.records import Turn
    >>> broke = Failure("verifier_error", "data", "verify", "broke")
    >>> turns = [Turn([1, 2], [3, 4], [-0.5, -0.25])]
    >>> sample_of(Rollout(task=Task("t", "?"), sample=0, seed=0, turns=turns, failure=broke)).sequences[0].mask
    [0, 0]
    """
    if rollout.score is not None:
        return Sample(rollout, _merge_turns(rollout), rollout.score.reward)
    try:
        return Sample(rollout, [mask_sequence(sequence) for sequence in merge(rollout.turns)], None)
    except TokenError:  # that its tokens are not known may be why it failed
        return Sample(rollout, [], None)


def _merge_turns(rollout: Rollout) -> list[Sequence]:
    try:
        return merge(rollout.turns)
    except TokenError as error:
        raise TokenError(f"rollout {rollout.task.id}#{rollout.sample}: {error}") from None


def require_scored(samples: Iterable[Sample], trainer: str) -> None:
    """Refuse masked rollouts where a trainer would take them to have a reward of 0 in their group."""
    for sample in samples:
        if sample.masked:
            task, number = sample.rollout.key
            why = f"{trainer} has no place for it: it needs a reward of every row"
            raise UsageError(f"rollout {task}#{number} failed, and {why}; use on_failure raise, retry or drop_group")


def mask_sequence(sequence: Sequence) -> Sequence:
    """The same ids, none of them trained."""
    length = len(sequence.response_ids)
    return Sequence(sequence.prompt_ids, sequence.response_ids, [0] * length, [0.0] * length, sequence.fork)


def to_openrlhf(sample: Sample, prompt: str, label: JSON = None) -> dict[str, JSON]:
    """All ids in one list, with the ranges that the model sampled; of one that forked, the sequence it ended with."""
    require_scored([sample], "OpenRLHF")
    row = sample.last or Sequence([], [], [], [])
    return {
        "prompt": prompt,
        "label": label,
        "reward": sample.reward,
        "scores": sample.reward,
        "observation_tokens": row.prompt_ids + row.response_ids,
        "action_ranges": find_sampled_ranges(row),
        "rollout_log_probs": [0.0] * len(row.prompt_ids) + row.logprobs,
        "extra_logs": {"untrained_tokens": sample.untrained, "turns": len(sample.rollout.turns)},
        "truncated": sample.rollout.truncated,
    }


def find_sampled_ranges(row: Sequence) -> list[tuple[int, int]]:
    """Where in prompt and response the model spoke, as (start, end).

    >>> find_sampled_ranges(Sequence([1, 2], [3, 4, 5], [1, 0, 1], [-0.1, 0.0, -0.2]))
    [(2, 3), (4, 5)]
    """
    ranges, at = [], len(row.prompt_ids)
    for sampled, run in groupby(row.mask):
        end = at + len(list(run))
        if sampled:
            ranges.append((at, end))
        at = end
    return ranges


def to_skyrl(samples: Rows[Sample]) -> dict[str, JSON]:
    """One row a rollout, in their order; of one that forked, the sequence it ended with, and the rest is counted."""
    require_scored(samples, "SkyRL")
    rows = [sample.last or Sequence([], [], [], []) for sample in samples]
    return {
        "prompt_token_ids": [row.prompt_ids for row in rows],
        "response_ids": [row.response_ids for row in rows],
        "rewards": [sample.reward for sample in samples],
        "loss_masks": [row.mask for row in rows],
        "stop_reasons": ["length" if sample.rollout.truncated else "stop" for sample in samples],
        "rollout_logprobs": [row.logprobs for row in rows],
        "rollout_metrics": {
            "rollbook/forked": sum(len(sample.sequences) > 1 for sample in samples),
            "rollbook/untrained_tokens": sum(sample.untrained for sample in samples),
        },
    }


def to_slime(sample: Sample) -> list[dict[str, JSON]]:
    """What a custom generate function sets, in as many samples as there are; siblings share the reward."""
    require_scored([sample], "slime")
    return [
        {
            "tokens": row.prompt_ids + row.response_ids,
            "response_length": len(row.response_ids),
            "loss_mask": row.mask,
            "rollout_log_probs": row.logprobs,
            "reward": sample.reward,
            "status": "truncated" if sample.rollout.truncated else "completed",
            "response": sample.rollout.text,
            "weight_versions": sample.versions,
            "metadata": {"task": sample.rollout.task.id, "sample": sample.rollout.sample},
        }
        for row in sample.sequences
    ]


def to_prime_rl(sample: Sample, temperature: float, advantage: float | None = None) -> list[dict[str, JSON]]:
    """A masked rollout has a mask of False and no advantage: whoever computes those leaves it out of its group."""
    return [
        {
            "token_ids": row.prompt_ids + row.response_ids,
            "mask": [False] * len(row.prompt_ids) + [value == 1 for value in row.mask],
            "logprobs": [0.0] * len(row.prompt_ids) + row.logprobs,
            "temperatures": [temperature] * len(row),
            "env_name": sample.rollout.task.env,
            "advantages": None if sample.masked or advantage is None else [advantage] * len(row),
        }
        for row in sample.sequences
    ]


REWARD_COLUMN = "rollbook_reward"
"""The column in which rewards reach the reward function; None where a rollout is masked."""


def to_trl(samples: Rows[Sample], pad_id: int) -> dict[str, list[JSON]]:
    """TRL's lists. Of a rollout that forked it is the sequence it ended with; `untrained` counts what that leaves out.

    A row may not be empty: where no token is known it is one that is padding, and masked.
    """
    rows = [sample.last or Sequence([pad_id], [pad_id], [0], [0.0]) for sample in samples]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.response_ids for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "env_mask": [row.mask for row in rows],
        REWARD_COLUMN: [sample.reward for sample in samples],
        "untrained": [sample.untrained for sample in samples],
    }


def make_array(values: list[float] | list[bool] | list[int], kind: str) -> Any:
    """What NeMo RL computes with: a tensor where torch is installed, the same in numpy otherwise."""
    if find_spec("torch"):
        import torch

        return torch.tensor(values, dtype=getattr(torch, kind))
    import numpy

    return numpy.array(values, dtype=kind)


def message_log(sequence: Sequence) -> list[dict[str, Any]]:
    """Turn by turn; only what was sampled has `generation_logprobs`, by which NeMo RL knows what to train."""
    log = [_make_prompt_message(sequence.prompt_ids)]
    at = 0
    for sampled, run in groupby(sequence.mask):
        end = at + len(list(run))
        ids = sequence.response_ids[at:end]
        log.append(_make_sampled_message(ids, sequence.logprobs[at:end]) if sampled else _make_prompt_message(ids))
        at = end
    return log


def _make_prompt_message(ids: list[int]) -> dict[str, Any]:
    return {"role": "user", "content": "", "token_ids": make_array(ids, "int64")}


def _make_sampled_message(ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    kept = {"token_ids": make_array(ids, "int64"), "generation_logprobs": make_array(logprobs, "float32")}
    return {"role": "assistant", "content": "", **kept}


def to_nemo_rl(sample: Sample, row: JSON) -> dict[str, Any]:
    """What NeMo RL takes of one row; of a rollout that forked, the sequence it ended with."""
    rollout = sample.rollout
    log = message_log(sample.last) if sample.last else []
    full = {
        "reward": sample.reward,
        "parts": dict(rollout.score.parts) if rollout.score else {},
        "text": rollout.text,
        "turns": len(rollout.turns),
        "truncated": rollout.truncated,
        "untrained_tokens": sample.untrained,
        "agent_ref": row.get("agent_ref"),
        "task": rollout.task.id,
    }
    return {"message_log": log, "input_message_log": log[:1], "full_result": full}
