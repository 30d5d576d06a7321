"""Rollouts in the form of verl's two contracts, as pure functions over samples.

V0: one row for every requested row, in its order, as padded arrays. V1: every sequence of every rollout under a key of
its own, unpadded, with a tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from rollbook.core import JSON
from rollbook.tokens import Sequence, batch
from rollbook.trainers.formats import Sample, get_rows

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[numpy.generic]

TIMING_PARTS = {"generate_sequences": "model_s", "tool_calls": "environment_s", "compute_score": "verify_s"}
"""verl's names for the parts of a rollout's time, and ours."""


@dataclass(frozen=True)
class PaddedBatch:
    """The parts of a DataProto: `tensors` [B, ...], `others` [B] (no tensors), `meta_info`."""

    tensors: dict[str, Any]
    others: dict[str, Any]
    meta_info: dict[str, Any]


class RewardKeys:
    """Which parts of rewards V0 is given: the same in all batches of one validation, because verl asserts that.

    Environments differ in their parts, and later batches are unknown. So the keys of a validation are those of its
    first batch and all that were seen before it; a row without one has None there, which verl leaves out.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._validation: tuple[int, list[str]] | None = None

    def choose(self, samples: Rows[Sample], validated_step: int | None) -> list[str]:
        """Return the keys for a batch; `validated_step` is the step of a validation, None in training."""
        own = {key for sample in samples for key in get_reward_parts(sample)}
        self._seen |= own
        if validated_step is None:
            self._validation = None
            return sorted(own)
        if self._validation is None or self._validation[0] != validated_step:
            self._validation = validated_step, sorted(self._seen)
        return self._validation[1]


def pad_batch(
    samples: Rows[Sample], pad_id: int, prompt_length: int, response_length: int, reward_keys: Rows[str] | None = None
) -> PaddedBatch:
    """Pad prompts on the left to `prompt_length` columns (more if one is longer), responses on the right to exactly
    `response_length`; what exceeds that is cut off, and counted.

    A rollout is one row here: of a forked one it is the last sequence, and the sampled tokens that are left out are
    counted. A masked rollout is refused, because verl would count it with a reward of 0 in its group. `reward_keys`
    are the parts of rewards that are passed on, by default all that the samples have.
    """
    rows = [_cut_row(row, response_length) for row in get_rows(samples, "verl's V0")]
    tensors = _make_tensors(rows, pad_id, prompt_length, response_length)
    tensors["rm_scores"] = _make_rewards(samples, rows, response_length)
    infos = [get_reward_parts(sample) for sample in samples]
    keys = sorted({key for info in infos for key in info}) if reward_keys is None else list(reward_keys)
    others = _make_non_tensors(samples) | {key: _make_object_array([info.get(key) for info in infos]) for key in keys}
    return PaddedBatch(tensors, others, {"timing": _make_timing(samples, rows), "reward_extra_keys": keys})


def get_reward_parts(sample: Sample) -> dict[str, JSON]:
    """Return what is logged of a reward besides itself: its parts."""
    score = sample.rollout.score
    return {} if score is None else {name: value for name, value in score.parts.items() if name != "reward"}


def _cut_row(row: Sequence, max_length: int) -> Sequence:
    if len(row.response_ids) <= max_length:
        return row
    cut = slice(0, max_length)
    return Sequence(row.prompt_ids, row.response_ids[cut], row.mask[cut], row.logprobs[cut], row.fork)


def _make_tensors(rows: list[Sequence], pad_id: int, prompt_length: int, response_length: int) -> dict[str, Any]:
    import numpy as np

    padded = batch(rows, pad_id)
    left = max(0, prompt_length - padded.prompts.shape[1])
    right = response_length - padded.responses.shape[1]
    both_sides = ((0, 0), (left, right))
    after = ((0, 0), (0, right))
    ids = np.pad(padded.input_ids, both_sides, constant_values=pad_id)
    columns = left + padded.prompts.shape[1]
    attention = np.pad(padded.attention_mask, both_sides)
    return {
        "prompts": ids[:, :columns],
        "responses": ids[:, columns:],
        "response_mask": np.pad(padded.response_mask, after),
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": np.maximum(attention.cumsum(axis=1) - 1, 0),
        "rollout_log_probs": np.pad(padded.logprobs, after),
    }


def _make_rewards(samples: Rows[Sample], rows: list[Sequence], response_length: int) -> Any:
    """Put the reward on the last token of the response."""
    import numpy as np

    rewards = np.zeros((len(rows), response_length), np.float32)
    for index, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        rewards[index, len(row.response_ids) - 1] = sample.reward
    return rewards


def _make_non_tensors(samples: Rows[Sample]) -> dict[str, Any]:
    import numpy as np

    steps = [[int(v) for v in sample.versions if v.isdecimal()] for sample in samples]
    return {
        "__num_turns__": np.array([len(sample.rollout.turns) for sample in samples], np.int32),
        "multi_modal_inputs": _make_object_array([{} for _ in samples]),
        "turn_scores": _make_object_array([[] for _ in samples]),
        "tool_rewards": _make_object_array([[] for _ in samples]),
        "min_global_steps": _make_object_array([min(s, default=None) for s in steps]),
        "max_global_steps": _make_object_array([max(s, default=None) for s in steps]),
        "extras": _make_object_array([{"task": s.rollout.task.id, "sample": s.rollout.sample} for s in samples]),
    }


def _make_object_array(values: list[Any]) -> Any:
    import numpy as np

    array = np.empty(len(values), object)
    array[:] = values
    return array


def _make_timing(samples: Rows[Sample], rows: list[Sequence]) -> dict[str, float]:
    """Return the times under verl's own names, and counts of what the rows leave out under ours."""
    cut = sum(len(s.last.response_ids) - len(r.response_ids) for s, r in zip(samples, rows, strict=True) if s.last)
    metrics: dict[str, float] = {
        "rollbook/forked": sum(len(sample.sequences) > 1 for sample in samples),
        "rollbook/untrained_tokens": sum(sample.untrained for sample in samples),
        "rollbook/cut_tokens": cut,
        "rollbook/retried": sum(sample.rollout.attempt > 1 for sample in samples),
    }
    times = [msgspec.structs.asdict(sample.rollout.timing) for sample in samples]
    for name, part in TIMING_PARTS.items():
        spent = [time[part] for time in times] or [0.0]
        metrics |= {
            f"agent_loop/{name}/min": min(spent),
            f"agent_loop/{name}/max": max(spent),
            f"agent_loop/{name}/mean": sum(spent) / len(spent),
        }
    slowest = max(times, key=lambda time: float(time["seconds"]), default=dict.fromkeys(TIMING_PARTS.values(), 0.0))
    return metrics | {f"agent_loop/slowest/{name}": slowest[part] for name, part in TIMING_PARTS.items()}


class Prompt(msgspec.Struct, frozen=True):
    """A prompt of verl's: a row of its dataset under a uid, at a step."""

    uid: str
    fields: Mapping[str, Any]
    global_steps: int


@dataclass(frozen=True)
class Trajectory:
    """An entry of the TransferQueue: `fields` with numpy arrays of one dimension."""

    key: str
    fields: dict[str, Any]
    tag: dict[str, Any]


def trajectories(prompt: Prompt, session: int, sample: Sample) -> list[Trajectory]:
    """Return the trajectories of one rollout, the last of which counts in its group; none if it failed without tokens.

    verl groups rewards by the field `uid`: a masked rollout has one of its own there, and so leaves the statistics.
    """
    return [
        Trajectory(
            f"{prompt.uid}_{session}_{index}",
            {**prompt.fields, **_make_fields(sequence, sample), **_make_id_fields(prompt, session, sample)},
            _make_tag(prompt, sequence, sample),
        )
        for index, sequence in enumerate(sample.sequences)
    ]


def _make_id_fields(prompt: Prompt, session: int, sample: Sample) -> dict[str, Any]:
    uid = f"{prompt.uid}-masked-{session}" if sample.masked else prompt.uid
    return {"uid": uid, "session_id": session, "global_steps": prompt.global_steps}


def _make_fields(sequence: Sequence, sample: Sample) -> dict[str, Any]:
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
        "metrics": {name: getattr(sample.rollout.timing, part) for name, part in TIMING_PARTS.items()},
        "extra_fields": {"reward_extra_info": get_reward_parts(sample), "masked": sample.masked},
        "multi_modal_inputs": {},
    }


def _make_tag(prompt: Prompt, sequence: Sequence, sample: Sample) -> dict[str, Any]:
    """Return a tag. Steps must be whole numbers: tokens of unnamed weights count for the current step."""
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
