"""OpenRLHF: what `AgentExecutor.execute` returns for one prompt."""

from __future__ import annotations

from itertools import groupby

from rollbook.core.json import JSON
from rollbook.tokens import Sequence
from rollbook.trainers.sample import Sample, all_scored


def executed(sample: Sample, prompt: str, label: JSON = None) -> dict[str, JSON]:
    """All ids in one list, with the ranges that the model sampled; of one that forked, the sequence it ended with."""
    all_scored([sample], "OpenRLHF")
    row = sample.last or Sequence([], [], [], [])
    return {
        "prompt": prompt,
        "label": label,
        "reward": sample.reward,
        "scores": sample.reward,
        "observation_tokens": row.prompt_ids + row.response_ids,
        "action_ranges": sampled_ranges(row),
        "rollout_log_probs": [0.0] * len(row.prompt_ids) + row.logprobs,
        "extra_logs": {"untrained_tokens": sample.untrained, "turns": len(sample.rollout.turns)},
        "truncated": sample.rollout.truncated,
    }


def sampled_ranges(row: Sequence) -> list[tuple[int, int]]:
    """Where in prompt and response the model spoke, as (start, end).

    >>> sampled_ranges(Sequence([1, 2], [3, 4, 5], [1, 0, 1], [-0.1, 0.0, -0.2]))
    [(2, 3), (4, 5)]
    """
    ranges, at = [], len(row.prompt_ids)
    for sampled, run in groupby(row.mask):
        end = at + len(list(run))
        if sampled:
            ranges.append((at, end))
        at = end
    return ranges
