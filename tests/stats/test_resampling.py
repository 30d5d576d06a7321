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


def test_the_observed_choice_of_signs_is_one_of_those_that_were_drawn(monkeypatch):
    differences = np.ones(MAX_ENUMERATED_TASKS + 1)
    sums = np.zeros(1000)
    sums[:7] = len(differences), -len(differences), *[float(len(differences))] * 5
    monkeypatch.setattr(resampling, "_draw_signed_sums", lambda *_: sums)
    monkeypatch.setattr(resampling, "_split_draws", lambda *_: [1000])
    found = permutation_test(differences, permutations=1000)
    assert (found.p, found.drawn) == ((1 + 7) / (1 + 1000), 1000)


@pytest.mark.parametrize(
    ("kinds", "wanted", "drawn"), [(1, 5000, 5000), (4, 5000, 2500), (40, 5000, 1000), (1, 10, 1000)]
)
def test_fewer_choices_are_drawn_where_tasks_differ_in_many_ways(monkeypatch, kinds, wanted, drawn):
    monkeypatch.setattr(resampling, "MAX_PERMUTATION_CELLS", 10_000)
    differences = np.tile(np.arange(1.0, kinds + 1), 1 + MAX_ENUMERATED_TASKS // kinds)
    assert permutation_test(differences, permutations=wanted).drawn == drawn


def test_draws_are_split_into_portions_of_a_bounded_size():
    for draws, size in ((10, 0), (10, 1), (2_500_000, 1), (25, 10**5), (3, 10**9)):
        portions = resampling._split_draws(draws, size)
        assert sum(portions) == draws
        assert max(portions) * max(1, size) <= 10**6 or set(portions) == {1}
        assert len(portions) == -(-draws // max(1, 10**6 // max(1, size)))


@pytest.mark.parametrize("flips", [resampling.MAX_COUNTED_FLIPS, resampling.MAX_COUNTED_FLIPS + 1])
def test_a_sign_test_of_many_tasks_is_that_of_the_binomial(flips):
    up = flips // 2 - round(flips**0.5)
    exact = 2 * sum(comb(flips, i) for i in range(up + 1)) / 2**flips
    assert sign_test(up, flips - up) == sign_test(flips - up, up) == pytest.approx(exact, rel=1e-9)
    assert 0.01 < exact < 0.1


def test_signed_sums_are_all_choices_of_signs():
    assert sorted(resampling._enumerate_signed_sums(np.array([1.0, 3.0])).tolist()) == [-4.0, -2.0, 2.0, 4.0]
    rng = np.random.default_rng(1)
    sums = resampling._draw_signed_sums(np.array([1.0, 3.0]), np.array([1, 1]), 400, rng)
    assert sorted(set(sums.tolist())) == [-4.0, -2.0, 2.0, 4.0]


def test_who_names_no_seed_gets_the_draws_of_seed_0():
    n, totals = make_synthetic(50, 4, 3)
    assert bootstrap_interval(n, totals) == bootstrap_interval(n, totals, seed=0)
    differences = np.linspace(-0.5, 1, 40)
    assert (
        permutation_test(differences) == permutation_test(differences, seed=0) != permutation_test(differences, seed=1)
    )


@pytest.mark.parametrize(
    ("tasks", "kinds", "used"), [(8, 2, "kind"), (7, 2, "index"), (12, 3, "kind"), (11, 3, "index")]
)
def test_kinds_are_drawn_where_there_are_four_tasks_of_each(monkeypatch, tasks, kinds, used):
    drawn = []
    for name in ("kind", "index"):
        monkeypatch.setattr(resampling, f"_draw_by_{name}", lambda *_, name=name: drawn.append(name) or np.arange(9.0))
    totals = np.array([float(at % kinds) for at in range(tasks)])
    assert bootstrap_interval(np.ones(tasks), totals) == pytest.approx((0.2, 7.8))
    assert drawn == [used]


def test_a_tail_is_counted_in_whole_numbers_up_to_a_bound():
    flips = resampling.MAX_COUNTED_FLIPS
    assert sign_test(flips // 2 - 30, flips - flips // 2 + 30) == 2 * (
        sum(comb(flips, i) for i in range(flips // 2 - 29)) / 2**flips
    )
