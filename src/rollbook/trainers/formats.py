"""What a trainer gets of a rollout, and the formats in which trainers take it.

A `Sample` is the token sequences and the reward of one rollout; failed rollouts have an all-zero mask and no reward.
For a trainer a rollout without a sampled token has failed too (`fail_if_unsampled`): no row is made up for it.
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
from math import isclose
from typing import Any

import msgspec

from rollbook.core import JSON, Failure, Rollout, Turn
from rollbook.errors import InvalidReward, RolloutFailed, TokenError, UsageError
from rollbook.models import make_response
from rollbook.tokens import Sequence, merge

CONTEXT_FULL = "context_length"
"""The finish reason of a turn whose prompt did not fit."""


class Sample(msgspec.Struct, frozen=True):
    """The sequences of a rollout; none if its tokens are unknown. `reward` is None if it failed."""

    rollout: Rollout
    sequences: list[Sequence]
    reward: float | None

    @property
    def masked(self) -> bool:
        """Whether it is excluded from its group's statistics and from training."""
        return self.reward is None

    @property
    def last(self) -> Sequence | None:
        """The sequence that the rollout ended with: the only one, unless it forked. None only if it failed."""
        return self.sequences[-1] if self.sequences else None

    @property
    def untrained(self) -> int:
        """Sampled tokens that a trainer with one sequence per rollout does not see."""
        return sum(sequence.trained for sequence in self.sequences[:-1])

    @property
    def versions(self) -> list[str]:
        """The versions of the weights that its turns were sampled with, where known."""
        return [turn.model_version for turn in self.rollout.turns if turn.model_version is not None]


def sample_of(rollout: Rollout) -> Sample:
    """What is trained of a rollout; TokenError if it was scored and its server reported no ids of what it sampled.

    Sequences in which nothing was sampled are left out.

    >>> from rollbook.core.task import Task
    >>> broke = Failure("verifier_error", "data", "verify", "broke")
    >>> turns = [Turn([1, 2], [3, 4], [-0.5, -0.25])]
    >>> sample_of(Rollout(task=Task("t", "?"), sample=0, seed=0, turns=turns, failure=broke)).sequences[0].mask
    [0, 0]
    """
    rollout = fail_if_unsampled(rollout)
    try:
        sequences = [sequence for sequence in merge(rollout.turns) if sequence.trained]
        if not sequences:
            raise TokenError(f"{rollout.usage.completion_tokens} tokens were sampled, and none has an id")
    except TokenError as error:
        if rollout.score is not None:
            raise TokenError(f"rollout {rollout.task.id}#{rollout.sample}: {error}") from None
        sequences = []  # unknown tokens may be why it failed
    if rollout.score is not None:
        return Sample(rollout, sequences, rollout.score.reward)
    return Sample(rollout, [mask_sequence(sequence) for sequence in sequences], None)


def fail_if_unsampled(rollout: Rollout) -> Rollout:
    """Return a scored rollout without a sampled token as a failed one, any other unchanged.

    The score is right, for example 0 where the first prompt did not fit. But a trainer takes scores only with tokens:
    a row for it would have to be made up. The failure policy decides about it, as about every failure.
    """
    if rollout.score is None or not all(map(_sampled_nothing, rollout.turns)):
        return rollout
    why = f"no token was sampled ({rollout.ended or 'an empty answer'})"
    return msgspec.structs.replace(
        rollout, score=None, failure=Failure.from_error(RolloutFailed("no_tokens", "model", why))
    )


def _sampled_nothing(turn: Turn) -> bool:
    """Whether it is known that nothing was sampled; ids that a server does not report are unknown."""
    return not turn.ids and not turn.completion_tokens and (turn.ids is not None or turn.finish_reason == CONTEXT_FULL)


def require_scored(samples: Iterable[Sample], trainer: str) -> None:
    """Refuse masked rollouts where a trainer would count them with a reward of 0 in their group."""
    for sample in samples:
        if sample.masked:
            task, number = sample.rollout.key
            failure = sample.rollout.failure
            reason = f" ({failure.kind}: {failure.message})" if failure else ""
            why = f"{trainer} cannot represent it: it needs a reward for every row"
            advice = "use on_failure raise, retry or drop_group"
            raise UsageError(f"rollout {task}#{number} failed{reason}, and {why}; {advice}")


def get_rows(samples: Rows[Sample], trainer: str) -> list[Sequence]:
    """Return the row of each sample for a trainer that needs one of every rollout: the sequence it ended with."""
    require_scored(samples, trainer)
    return [sample.last for sample in samples if sample.last]


def mask_sequence(sequence: Sequence) -> Sequence:
    """Return the same ids, none of them trained."""
    length = len(sequence.response_ids)
    return Sequence(sequence.prompt_ids, sequence.response_ids, [0] * length, [0.0] * length, sequence.fork)


def to_openrlhf(sample: Sample, prompt: str, label: JSON = None) -> dict[str, JSON]:
    """Return all ids in one list, with the ranges that the model sampled; of a forked rollout, the last sequence."""
    (row,) = get_rows([sample], "OpenRLHF")
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
    """Return the sampled ranges of prompt and response, as (start, end).

    >>> find_sampled_ranges(Sequence([1, 2], [3, 4, 5], [1, 0, 1], [-0.1, 0.0, -0.2]))
    [(2, 3), (4, 5)]
    """
    ranges, start = [], len(row.prompt_ids)
    for sampled, run in groupby(row.mask):
        end = start + len(list(run))
        if sampled:
            ranges.append((start, end))
        start = end
    return ranges


def to_skyrl(samples: Rows[Sample]) -> dict[str, JSON]:
    """Return one row per rollout, in order; of a forked one, the last sequence, and the count of the rest."""
    rows = get_rows(samples, "SkyRL")
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
    """Return what a custom generate function sets, one sample per sequence; siblings share the reward."""
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
    """Return samples; a masked rollout has a mask of False and no advantage, so it must be left out of its group."""
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
"""The column with the rewards for the reward function; None for a masked rollout."""


def to_trl(samples: Rows[Sample], pad_id: int) -> dict[str, list[JSON]]:
    """Return TRL's lists. Of a forked rollout it is the last sequence; `untrained` counts what that leaves out.

    TRL takes back every row, and none may be empty: a masked rollout without tokens is one masked padding token. It
    has no reward.
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
    """Return a tensor if torch is installed, else a numpy array: NeMo RL computes with either."""
    if find_spec("torch"):
        import torch

        return torch.tensor(values, dtype=getattr(torch, kind))
    import numpy

    return numpy.array(values, dtype=kind)


def message_log(sequence: Sequence) -> list[dict[str, Any]]:
    """Return the log turn by turn; only sampled turns have `generation_logprobs`, by which NeMo RL trains them."""
    log = [_make_prompt_message(sequence.prompt_ids)]
    start = 0
    for sampled, run in groupby(sequence.mask):
        end = start + len(list(run))
        ids = sequence.response_ids[start:end]
        log.append(_make_sampled_message(ids, sequence.logprobs[start:end]) if sampled else _make_prompt_message(ids))
        start = end
    return log


def _make_prompt_message(ids: list[int]) -> dict[str, Any]:
    return {"role": "user", "content": "", "token_ids": make_array(ids, "int64")}


def _make_sampled_message(ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    tokens = {"token_ids": make_array(ids, "int64"), "generation_logprobs": make_array(logprobs, "float32")}
    return {"role": "assistant", "content": "", **tokens}


def to_nemo_rl(sample: Sample, row: JSON, *, components: bool = False) -> dict[str, Any]:
    """Return NeMo RL's result for one row; of a forked rollout, the last sequence.

    With `components` the parts of the score are NeMo RL's `reward_components`, whose sum must be the reward.
    """
    (sequence,), rollout = get_rows([sample], "NeMo RL"), sample.rollout
    log = message_log(sequence)
    parts = dict(rollout.score.parts) if rollout.score else {}
    full = {
        **parts,  # NeMo RL logs the mean of every number here
        "reward": sample.reward,
        "parts": parts,
        "response": _make_nemo_response(rollout),
        "text": rollout.text,
        "turns": len(rollout.turns),
        "truncated": rollout.truncated,
        "untrained_tokens": sample.untrained,
        "agent_ref": row.get("agent_ref"),
        "task": rollout.task.id,
    }
    if components:
        full["reward_components"] = check_components(rollout)
    return {"message_log": log, "input_message_log": log[:1], "full_result": full}


def _make_nemo_response(rollout: Rollout) -> dict[str, JSON]:
    """Return the conversation as NeMo RL's reward penalties read it: items with texts, without token ids."""
    messages = rollout.messages[len(rollout.task.messages) :]
    turns = [Turn(finish_reason=turn.finish_reason) for turn in rollout.turns]
    task, number = rollout.key
    response = make_response(messages, turns, name=f"{task}_{number}", model="", ended=rollout.ended)
    for item in response["output"]:
        if item.get("type") == "message" and item.get("role") == "assistant":
            item["generation_str"] = "".join(str(part.get("text", "")) for part in item["content"])
    return response


def check_components(rollout: Rollout) -> dict[str, float]:
    """Return the parts of a score; InvalidReward if they do not sum to the reward, as NeMo RL requires."""
    parts, reward = (dict(rollout.score.parts), rollout.score.reward) if rollout.score else ({}, 0.0)
    if not isclose(sum(parts.values()), reward, rel_tol=1e-5, abs_tol=1e-6):
        why = f"the reward is {reward} and its parts {parts} sum to {sum(parts.values())}"
        raise InvalidReward(f"{why}; as reward_components they must sum to the reward: set reward_components to false")
    return parts
