"""slime: the fields of its `Sample`, one for every sequence of a rollout."""

from __future__ import annotations

from rollbook.core.json import JSON
from rollbook.trainers.sample import Sample, all_scored


def sample_fields(sample: Sample) -> list[dict[str, JSON]]:
    """What a custom generate function sets, in as many samples as there are; siblings share the reward."""
    all_scored([sample], "slime")
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
