"""Every number in docs/metrics.md is correct: its tables and worked examples are computed again."""

import re
from pathlib import Path

import numpy as np
import pytest

from rollbook.stats.columns import NO_ANSWER, TaskStats, make_columns
from rollbook.stats.estimators import best_at_k, clustered_error, confidence_interval, pass_at_k, pass_hat_k
from rollbook.stats.metrics import TaskProfile, compute_metrics
from rollbook.stats.resampling import bootstrap_interval

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def read_table(head):
    """Return the rows of the table with this first line."""
    lines = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def example():
    """Return the rollouts of the page's own table."""
    rows, rewards, answers = [], [], []
    for row, (_, said, scores, n, passed) in enumerate(read_table("| task | answers |")):
        given = [NO_ANSWER if word.strip() == "none" else int(word) for word in said.split(",")]
        worth = [float(word) for word in scores.split(",")]
        assert (len(given), sum(worth)) == (int(n), float(passed))
        rows, rewards, answers = rows + [row] * len(given), rewards + worth, answers + given
    return make_columns(rows, rewards, answers)


def test_the_table_of_numbers_is_what_comes_out_of_the_table_of_rollouts():
    held = example()
    run = compute_metrics("quiz", held, requested=12).json()
    each = dict(TaskProfile(held, [str(i) for i in range(10)]).rows({}, range(3)))
    hat = TaskStats(held).pass_hat(2)
    for name, *values in read_table("| number | q0 |"):
        tasks = hat.tolist() if name == "pass^2" else [each[row][name] for row in range(3)]
        assert [f"{value:.4f}" for value in [*tasks, run[name]]] == values


def test_the_worked_examples_are_right():
    assert "1 - C(3, 2) / C(4, 2) = 1 - 3/6 = 0.5" in PAGE
    assert pass_at_k(4, 1, 2)[0] == 0.5
    assert "For q0 and k = 2: 3/6 = 0.5" in PAGE
    assert pass_hat_k(4, 3, 2)[0] == 0.5
    assert "(0.5 + 0.5 + 0 + 0 + 0 + 1) / 6 = 0.3333" in PAGE
    assert TaskStats(example()).maj_at([2])[2].values[1] == pytest.approx((0.5 + 0.5 + 0 + 0 + 0 + 1) / 6)
    assert "best@2 = 0.8333" in PAGE
    assert best_at_k(np.array([0.0, 0.5, 1.0]), np.array([3]), 2)[0] == pytest.approx(0.8333, abs=5e-5)


def test_the_error_of_the_example_is_the_one_of_the_formula():
    made = compute_metrics("quiz", example(), requested=12)
    said = re.search(r"mean is ([0-9.]+) with a standard error of ([0-9]+\.[0-9]+)", PAGE)
    average, error = map(float, said.groups())
    off = [total - 4 * 5 / 12 for total in (3, 1, 1)]
    assert made.mean_error == pytest.approx((3 / 2 * sum(d * d for d in off)) ** 0.5 / 12)
    assert (made.mean, made.mean_error) == pytest.approx((average, error), abs=5e-5)


def measure_coverage(tasks, alpha, beta, runs, bootstraps, seed=1):
    """Return how often the analytic interval and the bootstrap contain the true mean of tasks with newly drawn
    rates."""
    rng = np.random.default_rng(seed)
    n, truth, held = np.full(tasks, 8.0), alpha / (alpha + beta), []
    for run in range(runs):
        totals = rng.binomial(8, rng.beta(alpha, beta, tasks)).astype(float)
        bounds = [confidence_interval(totals.sum() / n.sum(), clustered_error(n, totals), tasks)]
        bounds += [bootstrap_interval(n, totals, seed=run)] if run < bootstraps else []
        held.append([low <= truth <= high for low, high in bounds] if bounds[0] else [])
    return [np.mean([each[at] for each in held if len(each) > at]) for at in range(2 if bootstraps else 1)]


@pytest.mark.parametrize("row", read_table("| tasks | pass rates uniform"), ids=lambda row: row[0])
def test_intervals_hold_the_truth_as_often_as_the_page_says(row):
    tasks, *said = (float(cell.rstrip("%")) for cell in row)
    even, drawn = measure_coverage(int(tasks), 1, 1, 600, 150)
    hard = measure_coverage(int(tasks), 0.3, 2.7, 600, 0)[0]
    assert [even, hard] == pytest.approx([said[0] / 100, said[2] / 100], abs=0.04)
    assert drawn == pytest.approx(said[1] / 100, abs=0.09)
