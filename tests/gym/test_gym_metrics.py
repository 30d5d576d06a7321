"""Statistics with Gym's names and formulas; the expected numbers were made by NeMo Gym 0.5.1 from the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import UsageError
from rollbook.gym.metrics import aggregate_metrics, compute_pass_metrics, select_key_metrics

RECORDED = json.loads((Path(__file__).parent / "data" / "aggregate_metrics.json").read_text())


def same(ours: Any, theirs: Any) -> None:
    """Equal, numbers up to rounding; whole numbers may be written either way."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            same(mine, other)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1e-9)
    else:
        assert ours == theirs


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_numbers_are_those_that_gym_computes(case: dict[str, Any]) -> None:
    ours = aggregate_metrics(case["rows"])
    same(ours["group_level_metrics"], case["group_level_metrics"])
    same(ours["agent_metrics"], {**case["agent_metrics"], **case["pass_metrics"]})
    same(ours["key_metrics"], case["key_metrics"])


def test_nothing_has_no_numbers() -> None:
    assert aggregate_metrics([]) == {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}


def test_without_answers_there_is_no_majority() -> None:
    metrics = compute_pass_metrics([[{"reward": 1.0}, {"reward": 0.0}]])
    assert not any("majority" in name or "no_answer" in name for name in metrics)
    assert select_key_metrics(metrics) == {"pass@1[avg-of-2]/accuracy": 50.0, "pass@1/accuracy": 50.0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"reward": 1}, {"reward": 0}], "two rows are of _ng_task_index 0"),
        ([{"_ng_task_index": 3}], "the row of _ng_task_index 3, _ng_rollout_index 0 has no reward"),
    ],
)
def test_rows_that_would_be_miscounted_are_refused(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        aggregate_metrics(rows)
