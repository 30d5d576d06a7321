"""prime-rl: the fields of its `TrainingSample`, one flat list of ids for every sequence of a rollout."""

from __future__ import annotations

from rollbook.core.json import JSON
from rollbook.trainers.sample import Sample


def training_samples(sample: Sample, temperature: float, advantage: float | None = None) -> list[dict[str, JSON]]:
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
