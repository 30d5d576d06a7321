import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core.json import encode
from rollbook.stats.summary import BATCH, Tally

rollouts = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.0, 0.25, 1.0])), max_size=80)


def tally(pairs, env="sums"):
    made = Tally(env)
    for row, reward in pairs:
        made.add(row, reward, reward >= 1.0, prompt_tokens=3, completion_tokens=2, seconds=0.5)
    return made


def test_the_numbers_of_a_small_run_are_those_worked_by_hand():
    made = tally([(0, 1.0), (0, 0.0), (1, 1.0), (1, 1.0), (2, 0.0), (2, 0.0)])
    metrics = made.metrics(requested=8, failed={"verifier_error": 1})
    assert (metrics.scored, metrics.failed, metrics.pending) == (6, {"verifier_error": 1}, 1)
    assert metrics.mean == pytest.approx(0.5)
    assert metrics.std == pytest.approx((1.5 / 5) ** 0.5)
    assert metrics.pass_at == pytest.approx({1: 0.5, 2: 2 / 3})
    assert metrics.pass_hat == pytest.approx({1: 0.5, 2: 1 / 3})
    assert metrics.coverage == {1: 3, 2: 3}
    assert (metrics.prompt_tokens, metrics.completion_tokens) == (18, 12)
    assert metrics.seconds_p50 == pytest.approx(0.5, rel=0.06)
    assert metrics.mean_interval is not None
    assert metrics.mean_error == pytest.approx(0.5 / 3**0.5)
    assert metrics.pass_interval == (0.0, 1.0)


@given(rollouts, rollouts)
def test_merged_tallies_equal_one_tally_of_everything(first, second):
    merged = tally(first)
    merged.merge(tally(second))
    whole = tally(first + second)
    assert merged.metrics(200).json() == whole.metrics(200).json()


@given(rollouts, st.integers(0, 9))
def test_every_rollout_is_accounted_for_and_nothing_is_nan(pairs, failed):
    metrics = tally(pairs).metrics(requested=len(pairs) + failed + 2, failed={"model_timeout": failed})
    assert metrics.scored + sum(metrics.failed.values()) + metrics.pending == metrics.requested
    text = encode(metrics.json()).decode()
    assert "nan" not in text.lower()
    assert json.loads(text)["scored"] == len(pairs)


def test_an_empty_run_has_nulls_not_zeros():
    metrics = Tally("sums").metrics(requested=4, tasks=2)
    assert (metrics.scored, metrics.pending, metrics.tasks) == (0, 4, 2)
    assert metrics.mean is None
    assert metrics.std is None
    assert metrics.pass_interval is None
    assert metrics.seconds_p95 is None
    assert metrics.pass_at == {}
    assert metrics.coverage == {1: 0}


def test_one_sample_has_no_spread():
    metrics = tally([(0, 1.0)]).metrics(requested=1)
    assert metrics.std is None
    assert metrics.mean_interval is None
    assert metrics.pass_at == {1: 1.0}


def test_equal_rewards_have_a_zero_spread_and_no_interval():
    metrics = tally([(row, 1.0) for row in range(5)] * 2).metrics(requested=10)
    assert metrics.std == 0.0
    assert metrics.mean_interval is None


def test_tasks_with_fewer_than_k_rollouts_are_left_out_and_the_coverage_says_so():
    metrics = tally([(0, 1.0)] * 4 + [(1, 0.0)] * 2).metrics(requested=8, ks=[4, 1])
    assert metrics.pass_at == {1: 0.5, 4: 1.0}
    assert metrics.coverage == {1: 2, 4: 1}


def test_partial_credit_is_no_pass():
    metrics = tally([(0, 0.25), (0, 0.25)]).metrics(requested=2)
    assert metrics.mean == 0.25
    assert metrics.pass_at[1] == 0.0


def test_the_names_in_json_are_the_ones_people_know():
    shown = tally([(0, 1.0)] * 4).metrics(requested=4).json()
    assert {"pass@1", "pass@4", "pass^4", "mean", "std", "scored", "requested", "pass@1_interval"} <= set(shown)
    assert json.loads(encode(shown))["coverage"] == {"1": 1, "2": 1, "4": 1}


def test_truncated_and_unanswered_are_counted():
    made = Tally("sums")
    made.add(0, 0.0, False, truncated=True, answered=False)
    made.add(0, 1.0, True)
    metrics = made.metrics(requested=2)
    assert (metrics.truncated, metrics.no_answer) == (1, 1)


def test_huge_rewards_become_null_not_nan():
    metrics = tally([(0, 1.7e308), (0, 1.7e308), (1, -1.0)]).metrics(requested=3)
    assert metrics.mean is None
    assert metrics.std is None
    assert metrics.mean_error is None


def test_memory_grows_with_tasks_and_not_with_rollouts():
    made = tally([(i % 7, 1.0) for i in range(3 * BATCH + 5)])
    assert made.metrics(requested=3 * BATCH + 5).scored == 3 * BATCH + 5
    assert len(made._n) < 16
    assert not made._waiting
