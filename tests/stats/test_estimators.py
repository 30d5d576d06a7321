import math
from itertools import combinations
from math import comb
from statistics import NormalDist, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.stats.estimators import (
    T95,
    Z95,
    best_at_k,
    clip_interval,
    clustered_error,
    confidence_interval,
    default_ks,
    mean_or_none,
    pass_at_k,
    pass_hat_k,
    sample_std,
    t95,
)

small = st.integers(1, 10).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)),
)


@given(small)
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(case):
    n, c, k = case
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k)[0] == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@given(small)
def test_pass_hat_k_is_the_share_of_subsets_that_all_pass(case):
    n, c, k = case
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_hat_k(n, c, k)[0] == pytest.approx(sum(map(all, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (5, 2, 3, 0.9),
        (200, 20, 1, 0.1),
        (200, 1, 100, 0.5),
        (10, 0, 10, 0.0),
        (10, 10, 1, 1.0),
        (10, 1, 10, 1.0),
        (4, 3, 2, 1.0),
        (200, 60, 10, 1 - comb(140, 10) / comb(200, 10)),
    ],
)
def test_pass_at_k_has_the_values_of_the_published_estimator(n, c, k, expected):
    assert pass_at_k(n, c, k)[0] == pytest.approx(expected, abs=1e-12)


def test_thirty_tasks_of_four_samples_give_the_numbers_worked_by_hand():
    # 10 tasks with 0 of 4 right, 10 with 1 of 4, 5 with 2 of 4, 5 with 4 of 4.
    c = [0] * 10 + [1] * 10 + [2] * 5 + [4] * 5
    n = [4] * 30
    assert np.mean(pass_at_k(n, c, 1)) == pytest.approx(40 / 120)
    assert np.mean(pass_at_k(n, c, 2)) == pytest.approx((10 * 0.5 + 5 * 5 / 6 + 5) / 30)
    assert np.mean(pass_at_k(n, c, 4)) == pytest.approx(20 / 30)
    assert np.mean(pass_hat_k(n, c, 4)) == pytest.approx(5 / 30)


def test_large_counts_neither_overflow_nor_leave_the_unit_interval():
    values = pass_at_k([100_000] * 3, [0, 1, 99_999], 5_000)
    assert values.tolist() == pytest.approx([0.0, 0.05, 1.0])


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="k"):
        pass_at_k(n, c, k)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_sample_std_agrees_with_the_textbook(values):
    assert sample_std(np.array(values)) == pytest.approx(stdev(values), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("offset", [0.0, 1e7, -1e12, 1e15])
def test_a_common_offset_does_not_change_the_spread(offset):
    assert sample_std(offset + np.array([0.0, 1.0, 2.0])) == 1.0


def test_small_differences_are_differences():
    assert sample_std(np.array([0.0, 1e-20, 2e-20])) == pytest.approx(1e-20)
    assert clustered_error(np.ones(2), np.array([0.0, 2e-20])) == pytest.approx(1e-20)
    assert clustered_error(np.ones(2), np.array([0.0, 2e-20]), scale=1.0) is None


def test_what_is_undefined_is_none():
    assert mean_or_none(0.0, 0) is None
    assert sample_std(np.array([3.0])) is None
    assert sample_std(np.array([-1e308, 1e308])) is None
    assert confidence_interval(1e308, 1e308, 9) is None
    assert clustered_error(np.array([4.0]), np.array([2.0])) is None
    assert clustered_error(np.array([4.0, 4.0]), np.array([2.0, 2.0])) is None
    assert clustered_error(np.array([]), np.array([])) is None
    assert confidence_interval(0.5, None, 9) is None
    assert confidence_interval(None, 0.1, 9) is None
    assert clip_interval(None, 0, 1) is None


def test_equal_rewards_have_no_spread_in_spite_of_rounding():
    assert sample_std(np.full(1000, 0.1)) == 0.0


def test_rollouts_of_one_task_count_as_one_draw():
    independent = clustered_error(np.ones(8), np.array([0.0, 1, 0, 1, 0, 1, 0, 1]))
    doubled = clustered_error(np.full(8, 2.0), np.array([0.0, 2, 0, 2, 0, 2, 0, 2]))
    assert independent is not None
    assert doubled == pytest.approx(independent)
    assert independent == pytest.approx(stdev([0.0, 1] * 4) / 8**0.5)


@pytest.mark.parametrize(("tasks", "repeats"), [(2, 400), (3, 400), (5, 400), (10, 400), (60, 400)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(tasks, repeats):
    rng = np.random.default_rng(0)
    held = seen = 0
    n = np.full(tasks, 8.0)
    for _ in range(repeats):
        c = rng.binomial(8, rng.beta(1, 1, size=tasks))
        bounds = confidence_interval(c.sum() / n.sum(), clustered_error(n, c.astype(float)), tasks)
        seen += bounds is not None
        held += bounds is not None and bounds[0] <= 0.5 <= bounds[1]
    assert 0.91 <= held / seen <= (0.98 if tasks > 2 else 1.0)


@pytest.mark.parametrize("freedom", [*range(1, 31), 50, 200])
def test_students_quantile_leaves_a_fortieth_above_it(freedom):
    # With x = sqrt(v) tan(u), the density of t becomes a constant times cos(u)^(v - 1): a smooth integral.
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.pi**0.5
    end = math.atan(t95(freedom) / freedom**0.5)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    below = scale * end / 2 * float(weights @ np.cos((nodes + 1) * end / 2) ** (freedom - 1))
    assert below == pytest.approx(0.475, abs=1e-6)


@pytest.mark.parametrize(
    ("interval", "clipped"),
    [
        ((-0.1, 0.4), (0.0, 0.4)),
        ((0.2, 1.3), (0.2, 1.0)),
        ((-0.1, 1.3), (0.0, 1.0)),
        ((0.2, 0.4), (0.2, 0.4)),
        (None, None),
    ],
)
def test_an_interval_is_cut_to_what_is_possible(interval, clipped):
    assert clip_interval(interval, 0.0, 1.0) == clipped


@pytest.mark.parametrize(
    ("counts", "ks"),
    [
        ([8, 8, 7], [1, 2, 4, 8]),
        ([6, 6], [1, 2, 4, 6]),
        ([1], [1]),
        ([], [1]),
        ([0, 0, 3], [1, 2, 3]),
        ([1, 1, 1, 3], [1]),
    ],
)
def test_the_default_ks_follow_the_most_common_count(counts, ks):
    assert default_ks(counts) == ks


def test_the_quantile_is_the_normal_one():
    assert NormalDist().inv_cdf(0.975) == pytest.approx(Z95, abs=1e-15)


def test_the_quantiles_of_the_table_are_those_of_the_table():
    assert [t95(freedom) for freedom in range(1, len(T95) + 1)] == list(T95)
    assert t95(len(T95) + 1) < T95[-1]


def test_a_mean_of_nothing_is_none_and_one_of_something_a_number():
    assert [mean_or_none(3.0, n) for n in (0, 1, 2)] == [None, 3.0, 1.5]
    assert mean_or_none(float("inf"), 1) is None


@pytest.mark.parametrize("k", [0, -1, 4])
def test_a_maximum_of_more_or_fewer_than_there_are_is_refused(k):
    with pytest.raises(ValueError, match="needs 1 <= k <= n"):
        best_at_k(np.array([0.0, 0.5, 1.0]), np.array([3]), k)


def test_a_maximum_is_that_of_every_task_by_itself():
    rewards = [[0.0, 0.5, 1.0], [0.25, 0.25], [-1.0, 0.0, 0.0, 3.0]]
    flat, n = np.array([each for own in rewards for each in own]), np.array([3, 2, 4])
    for k in (1, 2):
        expected = [np.mean([max(chosen) for chosen in combinations(own, k)]) for own in rewards]
        assert best_at_k(flat, n, k) == pytest.approx(expected)
    assert best_at_k(np.zeros(0), np.zeros(0, np.int64), 3).tolist() == []


def test_an_interval_with_one_end_that_overflows_is_none():
    assert confidence_interval(1.7e308, 1e306, 30) is not None
    assert confidence_interval(1.7e308, 1e307, 30) is None
    assert confidence_interval(-1.7e308, 1e307, 30) is None
