"""verl's V0: padded arrays in the order of the rows, as its trainer reads them."""

from __future__ import annotations

import pytest

from rollbook.core import Score, Turn
from rollbook.errors import UsageError
from rollbook.trainers.formats import sample_of
from rollbook.trainers.verl import pad_batch
from rollbook.trainers.verl.batches import RewardKeys
from support.token_rollouts import played

PAD = 0


def test_prompts_are_padded_left_responses_right_and_nothing_else_moves() -> None:
    rollouts = [played([1, 2, 3], [4, 5], [1, 2, 3, 4, 5, 6], [7], reward=1.0), played([8], [9], reward=0.25)]
    padded = pad_batch([sample_of(r) for r in rollouts], PAD, prompt_length=4, response_length=5)
    tensors = {name: array.tolist() for name, array in padded.tensors.items()}
    assert tensors["prompts"] == [[0, 1, 2, 3], [0, 0, 0, 8]]
    assert tensors["responses"] == [[4, 5, 6, 7, 0], [9, 0, 0, 0, 0]]
    assert tensors["response_mask"] == [[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]]
    assert tensors["input_ids"] == [p + r for p, r in zip(tensors["prompts"], tensors["responses"], strict=True)]
    assert tensors["attention_mask"] == [[0, 1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0, 0, 0]]
    assert tensors["position_ids"] == [[0, 0, 1, 2, 3, 4, 5, 6, 6], [0, 0, 0, 0, 1, 1, 1, 1, 1]]
    assert tensors["rm_scores"] == [[0, 0, 0, 1.0, 0], [0.25, 0, 0, 0, 0]]
    assert tensors["rollout_log_probs"] == [[-0.5, -1.5, 0, -0.5, 0], [-0.5, 0, 0, 0, 0]]
    kinds = {name: str(array.dtype) for name, array in padded.tensors.items()}
    assert {kinds.pop("rm_scores"), kinds.pop("rollout_log_probs")} == {"float32"}
    assert set(kinds.values()) == {"int64"}


def test_beside_the_tensors_stands_what_the_trainer_indexes() -> None:
    rollouts = [played([1], [2], reward=1.0, version="7"), played([1], [2], [1, 2, 3], [4], reward=0.0)]
    padded = pad_batch([sample_of(r) for r in rollouts], PAD, 2, 4)
    assert padded.others["__num_turns__"].tolist() == [1, 2]
    assert padded.others["multi_modal_inputs"].tolist() == [{}, {}]
    assert padded.others["min_global_steps"].tolist() == [7, None]
    assert padded.others["style"].tolist() == [0.5, 0.0]
    assert padded.meta_info["reward_extra_keys"] == ["style"]
    timing = padded.meta_info["timing"]
    assert timing["agent_loop/generate_sequences/mean"] == 0
    assert timing["rollbook/cut_tokens"] == 0
    assert all(len(values) == 2 for values in padded.others.values())


def test_all_batches_of_a_validation_have_the_same_keys_whatever_their_environments() -> None:
    styled, plain = played([1], [2], reward=1.0), played([1], [2], reward=0.0)
    plain.score = Score(0.0, parts={"other": 0.5})
    keys = RewardKeys()
    one, other = [sample_of(styled)], [sample_of(plain)]
    assert keys.choose(one, validated_step=0) == keys.choose(other, validated_step=0) == ["style"]
    padded = pad_batch(other, PAD, 2, 2, keys.choose(other, validated_step=0))
    assert padded.meta_info["reward_extra_keys"] == ["style"]
    assert padded.others["style"].tolist() == [None]
    assert keys.choose(one, validated_step=None) == ["style"], "in training each batch has its own"
    assert keys.choose(one, validated_step=5) == keys.choose(other, validated_step=5) == ["other", "style"]


def test_a_response_that_is_too_long_is_cut_and_a_longer_prompt_widens_and_both_are_seen() -> None:
    padded = pad_batch([sample_of(played([1, 2, 3], [4, 5, 6], reward=1.0))], PAD, prompt_length=2, response_length=2)
    assert padded.tensors["prompts"].tolist() == [[1, 2, 3]]
    assert padded.tensors["responses"].tolist() == [[4, 5]]
    assert padded.tensors["rm_scores"].tolist() == [[0, 1.0]]
    assert padded.meta_info["timing"]["rollbook/cut_tokens"] == 1


def test_a_forked_rollout_is_the_sequence_it_ended_with_and_the_rest_is_counted() -> None:
    padded = pad_batch([sample_of(played([1, 2], [3, 4], [9], [8], reward=1.0))], PAD, 2, 3)
    assert padded.tensors["responses"].tolist() == [[8, 0, 0]]
    timing = padded.meta_info["timing"]
    assert (timing["rollbook/forked"], timing["rollbook/untrained_tokens"]) == (1, 2)


def test_a_rollout_that_sampled_nothing_is_refused_because_its_row_would_be_made_up() -> None:
    rollout = played([1], [2], reward=0.5)
    rollout.turns = [Turn(finish_reason="context_length")]
    with pytest.raises(UsageError, match=r"t#0 failed \(no_tokens: .* verl's V0 cannot represent it"):
        pad_batch([sample_of(rollout)], PAD, 2, 3)


def test_a_failed_rollout_is_refused_not_rewarded_with_zero() -> None:
    with pytest.raises(UsageError, match="t#0 failed"):
        pad_batch([sample_of(played([1], [2], reward=None))], PAD, 2, 2)
