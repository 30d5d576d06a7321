"""verl's V1: unpadded fields, keys and tags; masked rollouts leave the statistics of their group."""

from __future__ import annotations

from rollbook.core import Turn
from rollbook.trainers.formats import sample_of
from rollbook.trainers.verl import Prompt, trajectories
from support.token_rollouts import played

PROMPT = Prompt("u-1", {"raw_prompt": [{"role": "user", "content": "?"}], "data_source": "math", "index": 3}, 12)


def test_a_rollout_is_one_key_with_its_fields_unpadded_and_the_rows_own() -> None:
    (one,) = trajectories(PROMPT, 2, sample_of(played([1, 2], [3], [1, 2, 3, 4], [5], reward=0.75, version="11")))
    assert one.key == "u-1_2_0"
    arrays = {name: one.fields[name].tolist() for name in ("prompts", "responses", "response_mask", "input_ids")}
    assert arrays == {
        "prompts": [1, 2],
        "responses": [3, 4, 5],
        "response_mask": [1, 0, 1],
        "input_ids": [1, 2, 3, 4, 5],
    }
    assert one.fields["loss_mask"].tolist() == [1, 0, 1]
    assert one.fields["position_ids"].tolist() == [0, 1, 2, 3, 4]
    assert one.fields["rm_scores"].tolist() == [0, 0, 0.75]
    assert one.fields["rollout_log_probs"].tolist() == [-0.5, 0, -0.5]
    assert (one.fields["uid"], one.fields["session_id"], one.fields["num_turns"]) == ("u-1", 2, 2)
    assert (one.fields["data_source"], one.fields["index"]) == ("math", 3)
    assert one.fields["extra_fields"]["reward_extra_info"] == {"style": 0.375}
    assert one.tag == {
        "status": "success",
        "prompt_len": 2,
        "response_len": 3,
        "seq_len": 5,
        "global_steps": 12,
        "min_global_steps": 11,
        "max_global_steps": 11,
    }


def test_every_sequence_of_a_forked_rollout_has_a_key_and_the_reward() -> None:
    result = trajectories(PROMPT, 0, sample_of(played([1, 2], [3, 4], [9], [8], reward=1.0)))
    assert [one.key for one in result] == ["u-1_0_0", "u-1_0_1"]
    assert [float(one.fields["rm_scores"].sum()) for one in result] == [1.0, 1.0]
    assert [one.tag["min_global_steps"] for one in result] == [12, 12]


def test_a_masked_rollout_is_in_a_group_of_its_own_with_nothing_to_train() -> None:
    (one,) = trajectories(PROMPT, 1, sample_of(played([1], [2, 3], reward=None)))
    assert one.key == "u-1_1_0"
    assert one.fields["uid"] == "u-1-masked-1"
    assert one.fields["response_mask"].tolist() == one.fields["loss_mask"].tolist() == [0, 0]
    assert one.fields["rm_scores"].tolist() == [0, 0]
    assert one.fields["extra_fields"]["masked"] is True


def test_a_rollout_without_a_token_has_no_trajectory() -> None:
    rollout = played([1], [2], reward=None)
    rollout.turns = [Turn()]
    assert trajectories(PROMPT, 0, sample_of(rollout)) == []
