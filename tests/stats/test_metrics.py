import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.core import encode
from rollbook.stats import majority_vote
from rollbook.stats.columns import RewardParts, make_columns, merge_columns
from rollbook.stats.metrics import compute_metrics

rollouts = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.0, 0.25, 1.0]), st.integers(-1, 4)), max_size=80)


def columns_from(pairs):
    """Return columns of (task, reward) or (task, reward, answer)."""
    tasks, rewards, *answers = zip(*pairs, strict=True) if pairs else ((), ())
    size = len(tasks)
    costs = {"prompt_tokens": [3] * size, "completion_tokens": [2] * size, "seconds": [0.5] * size, "turns": [1] * size}
    return make_columns(tasks, rewards, *answers, **costs)


def compute(pairs, requested=None, **more):
    return compute_metrics(
        "sums", columns_from(pairs), requested=len(pairs) if requested is None else requested, **more
    )


def test_the_numbers_of_a_small_run_are_those_worked_by_hand():
    pairs = [(0, 1.0), (0, 0.0), (1, 1.0), (1, 1.0), (2, 0.0), (2, 0.0)]
    made = compute(pairs, 8, failed={"verifier_error": 1})
    assert (made.scored, made.failed, made.pending) == (6, {"verifier_error": 1}, 1)
    assert made.mean == pytest.approx(0.5)
    assert made.std == pytest.approx((1.5 / 5) ** 0.5)
    assert made.pass_at == pytest.approx({1: 0.5, 2: 2 / 3})
    assert made.pass_hat == pytest.approx({1: 0.5, 2: 1 / 3})
    assert made.coverage == {1: 3, 2: 3}
    assert (made.prompt_tokens, made.completion_tokens, made.turns) == (18, 12, 6)
    assert made.seconds_p50 == 0.5
    assert made.mean_interval is not None
    assert made.mean_error == pytest.approx(0.5 / 3**0.5)
    assert made.pass_interval == (0.0, 1.0)


def test_a_part_is_told_with_the_rollouts_that_have_it():
    held = replace(
        columns_from([(0, 1.0), (1, 0.0), (2, 0.0)]),
        parts=RewardParts(np.array([0, 1, 2, 1, 2]), np.array([0, 0, 0, 1, 1]), np.array([1.0, 0.0, 0.0, 1.0, 0.0])),
    )
    made = compute_metrics("sums", held, ["rule", "judge", "unheard"], requested=3)
    assert made.parts == {"judge": 0.5, "rule": pytest.approx(1 / 3)}
    assert made.part_coverage == {"judge": 2, "rule": 3}


@settings(deadline=None)
@given(rollouts, rollouts)
def test_merged_columns_give_the_numbers_of_everything_together(first, second):
    both = compute_metrics("sums", merge_columns([columns_from(first), columns_from(second)]), requested=200)
    whole = compute(first + second, 200)
    assert encode(both.json()) == encode(whole.json())


@settings(deadline=None)
@given(rollouts, st.integers(0, 9))
def test_every_rollout_is_accounted_for_and_nothing_is_nan(pairs, failed):
    made = compute(pairs, len(pairs) + failed + 2, failed={"model_timeout": failed})
    assert made.scored + sum(made.failed.values()) + made.pending == made.requested
    text = encode(made.json()).decode()
    assert "nan" not in text.lower()
    assert json.loads(text)["scored"] == len(pairs)


def test_an_empty_run_has_nulls_not_zeros():
    made = compute([], 4, tasks=2)
    assert (made.scored, made.pending, made.tasks) == (0, 4, 2)
    assert made.mean is None
    assert made.std is None
    assert made.pass_interval is None
    assert made.seconds_p95 is None
    assert made.pass_at == made.maj_at == made.best_at == {}
    assert made.coverage == {1: 0}


def test_one_sample_has_no_spread():
    made = compute([(0, 1.0)])
    assert made.std is None
    assert made.mean_interval is None
    assert made.mean_bootstrap is None
    assert made.pass_at == {1: 1.0}


def test_equal_rewards_have_a_zero_spread_and_no_interval():
    made = compute([(row, 1.0) for row in range(5)] * 2)
    assert made.std == 0.0
    assert made.mean_interval is None
    assert made.mean_bootstrap is None


def test_tasks_with_fewer_than_k_rollouts_are_left_out_and_the_coverage_says_so():
    made = compute([(0, 1.0, 7)] * 4 + [(1, 0.0, 8)] * 2, 8, ks=[4, 1, 9])
    assert made.pass_at == {1: 0.5, 4: 1.0}
    assert made.maj_at == {1: 0.5, 4: 1.0}
    assert made.coverage == {1: 2, 4: 1, 9: 0}


def test_partial_credit_is_no_pass_unless_the_threshold_says_so():
    made = compute([(0, 0.25), (0, 0.5)])
    assert (made.mean, made.pass_at[1], made.best_at[2]) == (0.375, 0.0, 0.5)
    assert compute([(0, 0.25), (0, 0.5)], threshold=0.5).pass_at == {1: 0.5, 2: 1.0}


def test_binary_rewards_have_no_best_at_k_and_rollouts_without_answers_no_vote():
    made = compute([(0, 0.0), (0, 1.0)])
    assert made.best_at == made.maj_at == {}


def test_the_names_in_json_are_the_ones_people_know():
    shown = compute([(0, 1.0, 1)] * 4).json()
    assert {"pass@1", "pass@4", "pass^4", "maj@4", "mean", "std", "scored", "requested"} <= set(shown)
    assert {"pass@1_interval", "pass@1_bootstrap"} <= set(shown)
    assert json.loads(encode(shown))["coverage"] == {"1": 1, "2": 1, "4": 1}


def test_truncated_and_unanswered_are_counted():
    cuts = {"truncated": [1, 1, 0, 0], "cut": [0, 1, 0, 0]}
    held = make_columns([0] * 4, [0.0, 1.0, 1.0, 1.0], [-1, 3, 4, 3], **cuts)
    made = compute_metrics("sums", held, requested=4)
    assert (made.truncated, made.cut, made.no_answer) == (2, 1, 1)


def test_huge_rewards_become_null_not_nan():
    made = compute([(0, 1.7e308, 1), (0, 1.7e308, 1), (1, -1.0, 2)])
    assert made.mean is None
    assert made.std == pytest.approx(1.7e308 / 3**0.5)  # what does not overflow is right
    assert compute([(0, 1.7e308, 1), (1, -1.7e308, 2)]).std is None
    assert made.mean_error is None
    assert made.mean_bootstrap is None
    assert "nan" not in encode(made.json()).decode().lower()


def test_latencies_are_exact_quantiles_however_short():
    seconds = [0.0002, 0.0004, 0.0009, 0.002, 3.0]
    made = compute_metrics("sums", make_columns([0] * 5, [1.0] * 5, seconds=seconds), requested=5)
    assert (made.seconds_p50, made.seconds_p95) == (0.0009, pytest.approx(np.quantile(seconds, 0.95)))


def test_an_environment_without_answers_is_no_part_of_the_vote():
    # Row 0 answers and is right once of twice; rows 1 and 2 are of an environment that reports no answers.
    held = make_columns([0, 0, 1, 1, 2, 2], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [7, 8, -1, -1, -1, -1])
    made = compute_metrics("all", held, requested=6, groups=np.array([0, 1, 1]))
    assert made.maj_at == {1: 0.5, 2: 0.5}
    assert (made.coverage, made.maj_coverage) == ({1: 3, 2: 3}, {1: 1, 2: 1})
    mute = compute_metrics("all", held.where(held.task > 0), requested=4, groups=np.array([0, 1, 1]))
    assert (mute.maj_at, mute.maj_coverage) == ({}, {})


def test_what_overflows_is_null_and_not_left_out():
    held = make_columns([0, 0], [1.7e308, 1.7e308], [1, 2])
    made = compute_metrics("huge", held, requested=2).json()
    assert made["maj@1"] is None
    assert made["pass@2"] == 1.0


def test_the_interval_of_a_mean_is_cut_to_shares_only_where_rewards_are_0_or_1():
    assert compute([(0, 1.0), (0, 1.0), (1, 1.0), (1, 0.0)]).mean_interval == (0.0, 1.0)
    low, high = compute([(0, 1.0), (0, 1.0), (1, 1.0), (1, 0.5)]).mean_interval
    assert low < 0.0 < 1.0 < high


def test_only_votes_that_were_drawn_have_an_error_of_drawing(monkeypatch):
    pairs = [(0, 1.0, 0), (0, 0.0, 1), (0, 0.0, 2)]
    assert compute(pairs, ks=[1, 2]).maj_errors == {}
    monkeypatch.setattr(majority_vote, "EXACT_STEPS", 0)
    drawn = compute(pairs, ks=[1, 2])
    assert list(drawn.maj_errors) == [2]
    assert 0 < drawn.maj_errors[2] < 0.1
    assert [name for name in drawn.json() if "drawing" in name] == ["maj@2_drawing_error"]


def test_kinds_of_failures_that_did_not_occur_are_left_out():
    made = compute([(0, 1.0)], 5, failed={"timeout": 2, "refused": 0})
    assert (made.failed, made.pending) == ({"timeout": 2}, 2)
    assert (compute([(0, 1.0)]).failed, compute([(0, 1.0)]).pending) == ({}, 0)


def test_totals_are_also_given_per_scored_rollout():
    made = compute([(0, 1.0), (0, 0.0), (1, 1.0)])
    assert made.per_rollout(made.completion_tokens) == 2.0
    assert compute([]).per_rollout(0) is None


def test_the_interval_of_pass_1_is_that_of_k_1():
    made = compute([(0, 1.0), (0, 1.0), (1, 1.0), (1, 0.0), (2, 1.0), (2, 0.0), (3, 1.0), (3, 0.0)])
    assert made.pass_interval == made.pass_intervals[1] != made.pass_intervals[2]
    assert compute([(0, 1.0)] * 2, ks=[2]).pass_interval is None
    low, high = made.pass_bootstrap
    assert 0.5 <= low < made.pass_at[1] < high <= 1.0


def test_tiny_rewards_have_an_interval_too():
    made = compute([(0, 1e-20), (1, 2e-20), (2, 3e-20)])
    assert made.mean_error == pytest.approx(1e-20 / 3**0.5)
    assert made.mean_bootstrap is not None


def test_the_number_of_tasks_is_that_of_the_scored_ones_unless_it_is_said():
    assert (compute([(0, 1.0), (5, 1.0)]).tasks, compute([(0, 1.0), (5, 1.0)], tasks=9).tasks) == (2, 9)


def test_means_and_coverage_of_parts_are_over_the_rollouts_that_have_them():
    held = make_columns([0, 0, 1], [1.0, 0.0, 1.0])
    parts = RewardParts(np.array([0, 1, 0]), np.array([2, 2, 0]), np.array([0.5, 1.0, 0.25]))
    made = compute_metrics("e", replace(held, parts=parts), ["z", "unused", "a"], requested=3)
    assert (made.parts, made.part_coverage) == ({"a": 0.75, "z": 0.25}, {"a": 2, "z": 1})
    assert list(made.parts) == ["a", "z"]
