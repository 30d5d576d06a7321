import math

import pytest

from rollbook.errors import RolloutFailed
from rollbook.models.server_errors import check_logprobs


def kind_of(**changes: object) -> str:
    values = {
        "prompt_ids": [1, 2],
        "ids": [3, 4],
        "logprobs": [-0.5, -1.0],
        "prompt_tokens": 2,
        "completion_tokens": 2,
    }
    values.update(changes)
    try:
        check_logprobs(**values)  # type: ignore[arg-type]
    except RolloutFailed as error:
        return error.kind
    return "fine"


def test_what_adds_up_is_returned_unchanged() -> None:
    assert check_logprobs([1], [3, 4], [-0.5, 0.0], prompt_tokens=1, completion_tokens=2) == [-0.5, 0.0]
    assert kind_of(prompt_tokens=None, completion_tokens=None) == "fine"


@pytest.mark.parametrize(
    "changes", [{"ids": [3]}, {"logprobs": [-1.0]}, {"completion_tokens": 3}, {"prompt_tokens": 1}, {"prompt_ids": []}]
)
def test_counts_that_disagree_are_a_mismatch(changes: dict[str, object]) -> None:
    assert kind_of(**changes) == "token_mismatch"


@pytest.mark.parametrize("logprob", [None, math.nan, math.inf, -math.inf, -9999.0])
def test_a_logprob_that_is_no_number_is_its_own_failure(logprob: float | None) -> None:
    assert kind_of(logprobs=[-1.0, logprob]) == "nonfinite_logprobs"
