"""The smaller exporters: each is one pure function of samples."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollbook.core import Turn
from rollbook.errors import UsageError
from rollbook.trainers.formats import Sample, sample_of, to_openrlhf, to_prime_rl, to_skyrl, to_slime
from support.token_rollouts import played

TURNS = sample_of(played([1, 2], [3], [1, 2, 3, 4], [5, 6], reward=0.5, version="9"))
FORKED = sample_of(played([1, 2], [3, 4], [9], [8], reward=1.0))
FAILED = sample_of(played([1], [2], reward=None))


def test_skyrl_has_one_row_a_rollout_with_equal_lengths() -> None:
    made = to_skyrl([TURNS, FORKED])
    assert made["prompt_token_ids"] == [[1, 2], [9]]
    assert made["response_ids"] == [[3, 4, 5, 6], [8]]
    assert made["loss_masks"] == [[1, 0, 1, 1], [1]]
    assert made["rollout_logprobs"] == [[-0.5, 0.0, -0.5, -1.5], [-0.5]]
    assert made["rewards"] == [0.5, 1.0]
    assert made["stop_reasons"] == ["stop", "stop"]
    assert made["rollout_metrics"] == {"rollbook/forked": 1, "rollbook/untrained_tokens": 2}


def test_openrlhf_has_all_ids_and_the_ranges_of_what_was_sampled() -> None:
    made = to_openrlhf(TURNS, "What?", "42")
    assert made["observation_tokens"] == [1, 2, 3, 4, 5, 6]
    assert made["action_ranges"] == [(2, 3), (4, 6)]
    assert made["rollout_log_probs"] == [0.0, 0.0, -0.5, 0.0, -0.5, -1.5]
    assert (made["prompt"], made["label"], made["reward"], made["truncated"]) == ("What?", "42", 0.5, False)


def test_slime_has_a_sample_for_every_sequence() -> None:
    (made,) = to_slime(TURNS)
    assert (made["tokens"], made["response_length"]) == ([1, 2, 3, 4, 5, 6], 4)
    assert len(made["loss_mask"]) == len(made["rollout_log_probs"]) == made["response_length"]
    assert (made["reward"], made["status"], made["weight_versions"]) == (0.5, "completed", ["9", "9"])
    assert [one["reward"] for one in to_slime(FORKED)] == [1.0, 1.0]


def test_prime_rl_has_one_flat_list_and_masks_what_failed() -> None:
    (made,) = to_prime_rl(TURNS, temperature=0.7, advantage=2.0)
    assert made["mask"] == [False, False, True, False, True, True]
    assert {len(made[name]) for name in ("token_ids", "mask", "logprobs", "temperatures", "advantages")} == {6}
    (failed,) = to_prime_rl(FAILED, temperature=0.7, advantage=2.0)
    assert failed["mask"] == [False, False]
    assert failed["advantages"] is None


@pytest.mark.parametrize("export", [lambda s: to_skyrl([s]), lambda s: to_openrlhf(s, "?"), to_slime])
def test_a_failed_rollout_is_refused_where_it_would_count_as_zero(export: Callable[[Sample], object]) -> None:
    with pytest.raises(UsageError, match="t#0 failed"):
        export(FAILED)


def test_a_rollout_that_sampled_nothing_trains_nothing() -> None:
    rollout = played([1], [2], reward=0.0)
    rollout.turns = [Turn(finish_reason="context_length")]
    sample = sample_of(rollout)
    assert to_skyrl([sample])["response_ids"] == [[]]
    assert to_openrlhf(sample, "?")["action_ranges"] == []
    assert to_slime(sample) == to_prime_rl(sample, 1.0) == []
