from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.stats import resampling
from rollbook.stats.estimators import clustered_error, confidence_interval
from rollbook.stats.resampling import MAX_ENUMERATED_TASKS, bootstrap_interval, permutation_test, sign_test


def make_synthetic(tasks, samples, seed, continuous=False):
    """Return counts of tasks of different difficulty and size."""
    rng = np.random.default_rng(seed)
    n = rng.integers(samples // 2, samples + 1, tasks)
    rates = rng.beta(1, 1, tasks)
    totals = rng.binomial(n, rates).astype(float)
    return n.astype(float), totals + (rng.random(tasks) if continuous else 0.0)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bootstrap_and_the_clustered_error_agree(seed, continuous):
    n, totals = make_synthetic(400, 8, seed, continuous)
    analytic = confidence_interval(totals.sum() / n.sum(), clustered_error(n, totals), len(n))
    drawn = bootstrap_interval(n, totals, seed=seed)
    width = analytic[1] - analytic[0]
    assert drawn == pytest.approx(analytic, abs=0.12 * width)


def test_both_ways_of_drawing_have_the_same_law():
    n, totals = np.full(300, 4.0), np.tile([0.0, 1.0, 4.0], 100)
    few_kinds = bootstrap_interval(n, totals)
    all_different = bootstrap_interval(n, totals + np.linspace(0, 1e-9, 300))
    assert few_kinds == pytest.approx(all_different, abs=0.02)


def test_the_seed_decides():
    n, totals = make_synthetic(50, 4, 3)
    assert (
        bootstrap_interval(n, totals, seed=1)
        == bootstrap_interval(n, totals, seed=1)
        != bootstrap_interval(n, totals, seed=2)
    )


def test_without_spread_there_is_no_interval():
    assert bootstrap_interval(np.array([4.0]), np.array([2.0])) is None
    assert bootstrap_interval(np.full(9, 4.0), np.full(9, 4.0)) is None
    assert bootstrap_interval(np.array([]), np.array([])) is None


@settings(deadline=None)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=8))
def test_the_permutation_test_is_the_share_of_all_sign_changes(differences):
    values = np.array(differences)
    sums = [abs(np.dot(signs, values)) for signs in product((1, -1), repeat=len(values))]
    exact = sum(total >= abs(values.sum()) - 1e-12 for total in sums) / len(sums)
    counted = permutation_test(values)
    assert (counted.p, counted.drawn) == (pytest.approx(exact, abs=1e-12), 0)
    drawn = permutation_test(np.tile(values, 15)) if np.count_nonzero(values) else None
    assert drawn is None or drawn.drawn == (10_000 if np.count_nonzero(values) * 15 > MAX_ENUMERATED_TASKS else 0)


def test_what_is_drawn_agrees_with_what_is_counted(monkeypatch):
    values = np.array([0.5, 0.25, -0.25, 1.0, 0.75, -0.5, 0.25])
    counted = permutation_test(values)
    monkeypatch.setattr(resampling, "MAX_ENUMERATED_TASKS", 0)
    drawn = permutation_test(values)
    assert (counted.drawn, drawn.drawn) == (0, 10_000)
    assert drawn.p == pytest.approx(counted.p, abs=0.03)


def test_the_permutation_test_is_never_zero_and_none_without_tasks():
    assert 0 < permutation_test(np.ones(200)).p < 0.001
    assert permutation_test(np.ones(3)) == (0.25, 0)
    assert permutation_test(np.zeros(5)) == (1.0, 0)
    assert permutation_test(np.array([])) is None
    assert permutation_test(np.linspace(-1, 1, 2001)).p > 0.5
    with np.errstate(over="ignore"):
        assert permutation_test(np.full(3, 1e308)) is None


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_sign_test_is_the_tail_of_a_coin(up, down):
    n = up + down
    if not n:
        assert sign_test(up, down) is None
        return
    tail = sum(comb(n, i) for i in range(min(up, down) + 1)) / 2**n
    assert sign_test(up, down) == pytest.approx(min(1.0, 2 * tail), rel=1e-12)


def test_thousands_of_coins_do_not_overflow():
    assert sign_test(50_000, 50_000) == 1.0
    assert 0 < sign_test(60_000, 50_000) < 1e-190
    assert 0 < sign_test(100_000, 0) < 1e-300


def test_a_small_chance_is_not_rounded_to_none():
    assert sign_test(100, 0) == 2.0**-99
    assert sign_test(1001, 400) == pytest.approx(2 * sum(comb(1401, i) for i in range(401)) / 2**1401, rel=1e-9)
