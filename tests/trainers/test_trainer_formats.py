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
    fields = to_skyrl([TURNS, FORKED])
    assert fields["prompt_token_ids"] == [[1, 2], [9]]
    assert fields["response_ids"] == [[3, 4, 5, 6], [8]]
    assert fields["loss_masks"] == [[1, 0, 1, 1], [1]]
    assert fields["rollout_logprobs"] == [[-0.5, 0.0, -0.5, -1.5], [-0.5]]
    assert fields["rewards"] == [0.5, 1.0]
    assert fields["stop_reasons"] == ["stop", "stop"]
    assert fields["rollout_metrics"] == {"rollbook/forked": 1, "rollbook/untrained_tokens": 2}


def test_openrlhf_has_all_ids_and_the_ranges_of_what_was_sampled() -> None:
    fields = to_openrlhf(TURNS, "What?", "42")
    assert fields["observation_tokens"] == [1, 2, 3, 4, 5, 6]
    assert fields["action_ranges"] == [(2, 3), (4, 6)]
    assert fields["rollout_log_probs"] == [0.0, 0.0, -0.5, 0.0, -0.5, -1.5]
    assert (fields["prompt"], fields["label"], fields["reward"], fields["truncated"]) == (
        "What?",
        "42",
        0.5,
        False,
    )


def test_slime_has_a_sample_for_every_sequence() -> None:
    (fields,) = to_slime(TURNS)
    assert (fields["tokens"], fields["response_length"]) == ([1, 2, 3, 4, 5, 6], 4)
    assert len(fields["loss_mask"]) == len(fields["rollout_log_probs"]) == fields["response_length"]
    assert (fields["reward"], fields["status"], fields["weight_versions"]) == (0.5, "completed", ["9", "9"])
    assert [one["reward"] for one in to_slime(FORKED)] == [1.0, 1.0]


def test_prime_rl_has_one_flat_list_and_masks_what_failed() -> None:
    (fields,) = to_prime_rl(TURNS, temperature=0.7, advantage=2.0)
    assert fields["mask"] == [False, False, True, False, True, True]
    assert {len(fields[name]) for name in ("token_ids", "mask", "logprobs", "temperatures", "advantages")} == {6}
    (failed,) = to_prime_rl(FAILED, temperature=0.7, advantage=2.0)
    assert failed["mask"] == [False, False]
    assert failed["advantages"] is None


@pytest.mark.parametrize("export", [lambda s: to_skyrl([s]), lambda s: to_openrlhf(s, "?"), to_slime])
def test_a_failed_rollout_is_refused_where_it_would_count_as_zero(export: Callable[[Sample], object]) -> None:
    with pytest.raises(UsageError, match="t#0 failed"):
        export(FAILED)


@pytest.mark.parametrize("export", [lambda s: to_skyrl([s]), lambda s: to_openrlhf(s, "?"), to_slime])
@pytest.mark.parametrize("turn", [Turn(finish_reason="context_length"), Turn([1], [], [])])
def test_a_rollout_that_sampled_nothing_is_refused_whatever_its_score(
    export: Callable[[Sample], object], turn: Turn
) -> None:
    rollout = played([1], [2], reward=0.0)
    rollout.turns = [turn]
    sample = sample_of(rollout)
    assert (sample.masked, sample.sequences, to_prime_rl(sample, 1.0)) == (True, [], [])
    with pytest.raises(UsageError, match=r"t#0 failed \(no_tokens: no token was sampled"):
        export(sample)


def test_a_sequence_that_ended_before_a_token_is_no_row() -> None:
    sample = sample_of(played([1, 2], [3, 4], [9], [], reward=1.0))
    assert [sequence.response_ids for sequence in sample.sequences] == [[3, 4]]
    assert sample.last is sample.sequences[0]
