from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.stats.estimators import best_at_k

rewards = st.lists(st.floats(-10, 10), min_size=1, max_size=10).map(sorted)


@given(rewards)
def test_best_at_k_is_the_mean_of_the_largest_over_all_subsets(values):
    for k in range(1, len(values) + 1):
        largest = [max(chosen) for chosen in combinations(values, k)]
        found = best_at_k(np.array(values), np.array([len(values)]), k)
        assert found[0] == pytest.approx(sum(largest) / len(largest), abs=1e-9)


@given(st.lists(rewards, min_size=1, max_size=5))
def test_tasks_lie_side_by_side(tasks):
    flat, n = np.array([value for task in tasks for value in task]), np.array(list(map(len, tasks)))
    one_by_one = [best_at_k(np.array(task), np.array([len(task)]), 1)[0] for task in tasks]
    assert best_at_k(flat, n, 1) == pytest.approx(one_by_one)


def test_it_is_the_mean_for_one_and_the_largest_for_all():
    values, n = np.array([0.0, 0.25, 1.0, 2.0]), np.array([4])
    assert best_at_k(values, n, 1)[0] == pytest.approx(0.8125)
    assert best_at_k(values, n, 4)[0] == pytest.approx(2.0)


def test_many_rollouts_neither_overflow_nor_lose_weight():
    assert best_at_k(np.ones(5000), np.array([5000]), 2500)[0] == pytest.approx(1.0)


def test_more_than_there_are_is_refused():
    with pytest.raises(ValueError, match="k=3"):
        best_at_k(np.array([1.0, 2.0]), np.array([2]), 3)
    assert best_at_k(np.array([]), np.array([], np.int64), 1).tolist() == []
