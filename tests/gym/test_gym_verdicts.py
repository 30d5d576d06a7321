"""The fields that decide whether a reward counts."""

import pytest

from rollbook.gym.rows import read_failure


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, None),
        ({"mask_sample": False, "_ng_no_persist": False}, None),
        ({"_ng_no_persist": True}, "environment_error"),
        ({"mask_sample": True}, "verifier_error"),
        ({"_ng_failure_class": "transient"}, "agent_error"),
        ({"_ng_failure_class": "transient", "_ng_failure_terminal": True}, "verifier_error"),
        ({"_ng_failure_class": "model_rejected", "_ng_failure_terminal": True, "mask_sample": True}, "model_rejected"),
        ({"_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "away"}, "judge_error"),
    ],
)
def test_a_reward_that_does_not_count_is_a_failure_of_its_kind(fields, kind):
    failure = read_failure({"reward": 1.0, **fields}, "/run", "agent_error")
    assert (failure and failure.kind) == kind
