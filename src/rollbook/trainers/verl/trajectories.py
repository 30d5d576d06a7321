"""verl's newer contract (V1): every sequence of every rollout under a key of its own, unpadded, with a tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rollbook.tokens import Sequence
from rollbook.trainers.sample import Sample
from rollbook.trainers.verl.padded import PARTS, reward_info


class Prompt(msgspec.Struct, frozen=True):
    """What verl asks: a row of its dataset under a uid, at a step."""

    uid: str
    fields: Mapping[str, Any]
    global_steps: int


@dataclass(frozen=True)
class Trajectory:
    """What is put into the TransferQueue: `fields` with numpy arrays of one dimension."""

    key: str
    fields: dict[str, Any]
    tag: dict[str, Any]


def trajectories(prompt: Prompt, session: int, sample: Sample) -> list[Trajectory]:
    """The trajectories of one rollout, of which the last one counts in its group. None if it sampled nothing.

    verl groups rewards by the field `uid`: a masked rollout has one of its own there, and so leaves the statistics.
    """
    told = [sequence for sequence in sample.sequences if sequence.response_ids]
    return [
        Trajectory(
            f"{prompt.uid}_{session}_{index}",
            {**prompt.fields, **_fields(sequence, sample), **_named(prompt, session, sample)},
            _tag(prompt, sequence, sample),
        )
        for index, sequence in enumerate(told)
    ]


def _named(prompt: Prompt, session: int, sample: Sample) -> dict[str, Any]:
    uid = f"{prompt.uid}-masked-{session}" if sample.masked else prompt.uid
    return {"uid": uid, "session_id": session, "global_steps": prompt.global_steps}


def _fields(sequence: Sequence, sample: Sample) -> dict[str, Any]:
    import numpy as np

    arrays = sequence.arrays
    mask = arrays.mask.astype(np.int64)
    ids = np.concatenate([arrays.prompt_ids, arrays.response_ids])
    rewards = np.zeros(len(mask), np.float32)
    rewards[-1] = sample.reward or 0.0
    return {
        "prompts": arrays.prompt_ids,
        "responses": arrays.response_ids,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": ids,
        "position_ids": np.arange(len(ids), dtype=np.int64),
        "rollout_log_probs": arrays.logprobs,
        "rm_scores": rewards,
        "num_turns": len(sample.rollout.turns),
        "metrics": {name: getattr(sample.rollout.timing, part) for name, part in PARTS.items()},
        "extra_fields": {"reward_extra_info": reward_info(sample), "masked": sample.masked},
        "multi_modal_inputs": {},
    }


def _tag(prompt: Prompt, sequence: Sequence, sample: Sample) -> dict[str, Any]:
    """Steps must be whole numbers: what was sampled by weights that nobody named was by those of the present step."""
    steps = [int(version) for version in sample.versions if version.isdecimal()] or [prompt.global_steps]
    return {
        "status": "success",
        "prompt_len": len(sequence.prompt_ids),
        "response_len": len(sequence.response_ids),
        "seq_len": len(sequence),
        "global_steps": prompt.global_steps,
        "min_global_steps": min(steps),
        "max_global_steps": max(steps),
    }
