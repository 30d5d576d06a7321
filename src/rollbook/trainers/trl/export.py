"""What TRL's `rollout_func` returns: one row for every prompt, in its order."""

from __future__ import annotations

from collections.abc import Sequence as Rows

from rollbook.core.json import JSON
from rollbook.tokens import Sequence
from rollbook.trainers.sample import Sample

REWARD = "rollbook_reward"
"""The column in which rewards reach the reward function; None where a rollout is masked."""


def exported(samples: Rows[Sample], pad_id: int) -> dict[str, list[JSON]]:
    """TRL's lists. Of a rollout that forked it is the sequence it ended with; `untrained` counts what that leaves out.

    A row may not be empty: where no token is known it is one that is padding, and masked.
    """
    rows = [sample.last or Sequence([pad_id], [pad_id], [0], [0.0]) for sample in samples]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.response_ids for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "env_mask": [row.mask for row in rows],
        REWARD: [sample.reward for sample in samples],
        "untrained": [sample.untrained for sample in samples],
    }
