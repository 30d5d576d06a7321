"""SkyRL: what `GeneratorInterface.generate` returns."""

from __future__ import annotations

from collections.abc import Sequence as Rows

from rollbook.core.json import JSON
from rollbook.tokens import Sequence
from rollbook.trainers.sample import Sample, all_scored


def generator_output(samples: Rows[Sample]) -> dict[str, JSON]:
    """One row a rollout, in their order; of one that forked, the sequence it ended with, and the rest is counted."""
    all_scored(samples, "SkyRL")
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
