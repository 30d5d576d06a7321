"""A rollout as NeMo RL's message log: what the model was shown and what it sampled, as token ids."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rollbook.core.json import JSON
from rollbook.tokens import Sequence
from rollbook.trainers.nemo_rl.environment import array
from rollbook.trainers.sample import Sample


def message_log(sequence: Sequence) -> list[dict[str, Any]]:
    """Turn by turn; only what was sampled has `generation_logprobs`, by which NeMo RL knows what to train."""
    log = [_shown(sequence.prompt_ids)]
    at = 0
    for sampled, run in groupby(sequence.mask):
        end = at + len(list(run))
        ids = sequence.response_ids[at:end]
        log.append(_sampled(ids, sequence.logprobs[at:end]) if sampled else _shown(ids))
        at = end
    return log


def _shown(ids: list[int]) -> dict[str, Any]:
    return {"role": "user", "content": "", "token_ids": array(ids, "int64")}


def _sampled(ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    kept = {"token_ids": array(ids, "int64"), "generation_logprobs": array(logprobs, "float32")}
    return {"role": "assistant", "content": "", **kept}


def result_of(sample: Sample, row: JSON) -> dict[str, Any]:
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
