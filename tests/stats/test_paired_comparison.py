import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.core import encode
from rollbook.stats.columns import make_columns
from rollbook.stats.metrics import compute_metrics
from rollbook.stats.paired_comparison import PairedRun, compare_columns


def make_run(rewards_by_task, pairs=None, **more):
    """Return a run with these rewards; `pairs` numbers its rows, by default in order."""
    rows = [row for row, rewards in enumerate(rewards_by_task) for _ in rewards]
    flat = [reward for rewards in rewards_by_task for reward in rewards]
    given = {name: [value] * len(flat) for name, value in more.items()}
    numbers = np.arange(len(rewards_by_task)) if pairs is None else np.array(pairs)
    return PairedRun(make_columns(rows, flat, [int(reward) for reward in flat], **given), numbers)


def test_the_difference_is_paired_by_task():
    a = make_run([[0, 0], [1, 0], [1, 1]], completion_tokens=10)
    b = make_run([[1, 0], [1, 1], [1, 1]], completion_tokens=30)
    found = compare_columns(a, b, ["x", "y", "z"])
    mean = found.metrics["mean"]
    assert (mean.a, mean.b, mean.difference, mean.tasks) == pytest.approx((0.5, 5 / 6, 1 / 3, 3))
    # The differences are 1/2, 1/2, 0: their error is their spread over the root of three.
    error = np.std([0.5, 0.5, 0.0], ddof=1) / 3**0.5
    assert mean.interval == pytest.approx((1 / 3 - 4.302653 * error, 1 / 3 + 4.302653 * error), abs=1e-6)
    assert found.metrics["pass@2"].difference == pytest.approx(1 / 3)
    assert (found.metrics["pass^2"].a, found.metrics["pass^2"].b) == pytest.approx((1 / 3, 2 / 3))
    assert "best@2" not in found.metrics
    assert found.costs["completion_tokens"].difference == 20
    assert (found.better, found.worse, found.tasks) == (2, 0, 3)
    assert (found.permutation_p, found.permutations, found.sign_p) == (0.5, 0, 0.5)


def test_flipped_tasks_are_listed_both_ways_the_furthest_first():
    a = make_run([[1, 1, 1], [0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1]])
    b = make_run([[0, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1]])
    found = compare_columns(a, b, list("vwxyz"))
    assert (found.gained, found.lost) == (["w", "x"], ["v", "y"])


def test_rows_are_matched_by_their_pairs():
    a, b = make_run([[1], [0], [1]], [1, 0, -1]), make_run([[0], [1]], [0, 1])
    found = compare_columns(a, b, ["p", "q"])
    assert found.metrics["mean"].difference == 0
    assert found.tasks == 2


def test_tasks_without_a_score_on_either_side_are_left_out():
    found = compare_columns(make_run([[1], []]), make_run([[0], [1]]), ["p", "q"])
    assert (found.tasks, found.metrics["mean"].difference) == (1, -1.0)
    assert found.metrics["mean"].interval is None


def test_nothing_in_common_is_null_not_nan():
    found = compare_columns(make_run([[1], []]), make_run([[], [1]]), ["p", "q"])
    assert found.metrics["mean"].difference is None
    assert (found.permutation_p, found.permutations, found.sign_p) == (None, None, None)
    assert "nan" not in encode(found).decode().lower()


def test_equal_runs_differ_by_nothing():
    found = compare_columns(make_run([[1, 0], [0, 0]]), make_run([[0, 1], [0, 0]]), ["p", "q"])
    assert found.metrics["mean"].difference == 0
    assert (found.permutation_p, found.sign_p, found.gained, found.lost) == (1.0, None, [], [])


def test_a_true_difference_is_found_and_the_seed_decides_the_draw():
    rng = np.random.default_rng(0)
    rates = rng.random(200)
    a = make_run([rng.binomial(1, rate, 8).tolist() for rate in rates])
    b = make_run([rng.binomial(1, min(1.0, rate + 0.1), 8).tolist() for rate in rates])
    names = [f"t{i}" for i in range(200)]
    found = compare_columns(a, b, names, seed=3)
    low, high = found.metrics["mean"].interval
    assert 0 < low < 0.1 < high < 0.2
    assert (found.permutation_p < 0.01, found.permutations) == (True, 10_000)
    assert found.permutation_p == compare_columns(a, b, names, seed=3).permutation_p


def test_graded_rewards_are_compared_by_their_best_as_well():
    found = compare_columns(make_run([[0.2, 0.4], [0, 1]]), make_run([[0.5, 0.1], [1, 1]]), ["p", "q"])
    best = found.metrics["best@2"]
    assert (best.a, best.b, best.difference) == pytest.approx((0.7, 0.75, 0.05))


ragged = st.lists(
    st.tuples(*(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=5) for _ in range(2))),
    min_size=2,
    max_size=8,
)


@settings(deadline=None)
@given(ragged)
def test_the_mean_is_the_one_that_a_report_gives_however_ragged_the_runs(pairs):
    sides = [make_run([pair[at] for pair in pairs]) for at in range(2)]
    mean = compare_columns(*sides, [str(at) for at in range(len(pairs))]).metrics["mean"]
    reports = [compute_metrics("e", each.columns, requested=len(each.columns)).mean for each in sides]
    assert (mean.a, mean.b) == pytest.approx(tuple(reports))
    assert mean.difference == pytest.approx(reports[1] - reports[0])


def test_the_interval_of_ragged_runs_is_the_spread_when_tasks_are_drawn_again():
    rng = np.random.default_rng(4)
    rates = rng.random(150)
    both = [[rng.binomial(1, rate, rng.integers(1, 9)).tolist() for rate in rates] for _ in range(2)]
    mean = compare_columns(make_run(both[0]), make_run(both[1]), [str(at) for at in range(150)]).metrics["mean"]
    sums, counts = (np.array([[f(r) for r in run] for run in both], float) for f in (sum, len))
    drawn = rng.integers(0, 150, (4000, 150))
    again = sums[:, drawn].sum(axis=2) / counts[:, drawn].sum(axis=2)
    assert mean.interval[1] - mean.difference == pytest.approx(1.976 * np.std(again[1] - again[0]), rel=0.1)


def test_an_environment_without_answers_has_no_part_in_the_vote():
    quiet = make_columns([0, 0, 1, 1], [1, 1, 0, 1], [5, 6, -1, -1])
    a = PairedRun(quiet, np.arange(2), np.array([0, 1]))
    votes = compare_columns(a, a, ["p", "q"]).metrics["maj@2"]
    assert (votes.a, votes.tasks) == (1.0, 1)


def test_rewards_that_are_graded_in_one_run_alone_are_compared_by_their_best_too():
    graded, binary = make_run([[0.25, 0.5], [0.5, 0.75]]), make_run([[0, 1], [1, 1]])
    for a, b in ((graded, binary), (binary, graded), (graded, graded)):
        assert "best@2" in compare_columns(a, b, ["x", "y"]).metrics
    assert "best@2" not in compare_columns(binary, binary, ["x", "y"]).metrics


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_votes_are_compared_only_where_both_runs_have_answers(order):
    voting = make_run([[1, 0], [1, 1]])
    silent = PairedRun(make_columns([0, 0, 1, 1], [1.0, 0.0, 1.0, 1.0]), np.arange(2))
    a, b = ((voting, silent)[at] for at in order)
    found = compare_columns(a, b, ["x", "y"]).metrics
    assert "pass@2" in found
    assert "maj@2" not in found
    assert "maj@2" in compare_columns(voting, voting, ["x", "y"]).metrics


def test_runs_without_a_task_in_common_are_compared_over_no_tasks():
    found = compare_columns(make_run([[1], []]), make_run([[], [1]]), ["p", "q"])
    assert (found.tasks, found.metrics["mean"].tasks, found.costs["turns"].tasks) == (0, 0, 0)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("n", [(1, 1), (50, 1), (50, 50)])
def test_tiny_differences_have_an_interval_however_many_rollouts_there_are(n, swap):
    """Only differences below the rounding of one reward are taken for none."""
    base, tiny = [[1.0] * n[0]] * 3, [[1.0 + step * 1e-12] * n[1] for step in (1, 2, 3)]
    a, b = (make_run(run) for run in ((tiny, base) if swap else (base, tiny)))
    low, high = compare_columns(a, b, ["x", "y", "z"]).metrics["mean"].interval
    assert high - low < 1e-11
    same = make_run([[1.0 + step * 1e-15] * n[1] for step in (1, 2, 3)])
    a, b = (same, make_run(base)) if swap else (make_run(base), same)
    assert compare_columns(a, b, ["x", "y", "z"]).metrics["mean"].interval is None
