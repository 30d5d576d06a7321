import tracemalloc
from collections import Counter
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.stats import majority_vote
from rollbook.stats.columns import NO_ANSWER, TaskStats, make_columns
from rollbook.stats.majority_vote import Ballots, maj_at_k, vote_shares

rollouts = st.lists(
    st.tuples(st.integers(NO_ANSWER, 4), st.sampled_from([-1.0, 0.0, 0.3, 1.0])),
    min_size=1,
    max_size=10,
)


def compute_by_brute_force(rollouts, k):
    """Return the value of a vote, averaged over every subset of k."""
    given = {}
    for answer, score in rollouts:
        given.setdefault(answer, []).append(score)
    worth = {answer: sum(scores) / len(scores) for answer, scores in given.items()}
    values = [compute_vote([answer for answer, _ in chosen], worth) for chosen in combinations(rollouts, k)]
    return sum(values) / len(values)


def compute_vote(answers, worth):
    counts = Counter(answer for answer in answers if answer != NO_ANSWER)
    if not counts:
        return worth[NO_ANSWER]
    most = max(counts.values())
    winners = [answer for answer, count in counts.items() if count == most]
    return sum(worth[answer] for answer in winners) / len(winners)


def make_ballots(*tasks):
    """Return the ballots that the numbers are computed from, as columns produce them."""
    rows = [(row, answer, score) for row, rollouts in enumerate(tasks) for answer, score in rollouts]
    row, answer, score = zip(*rows, strict=True)
    return TaskStats(make_columns(row, score, answer)).ballots


@given(rollouts)
@settings(max_examples=200, deadline=None)
def test_maj_at_k_is_the_mean_over_all_subsets(rollouts):
    found = maj_at_k(make_ballots(rollouts), range(1, len(rollouts) + 1))
    for k, majority in found.items():
        assert majority.values[0] == pytest.approx(compute_by_brute_force(rollouts, k), abs=1e-12)
        assert majority.error is None


@settings(deadline=None)
@given(st.lists(rollouts, min_size=1, max_size=6))
def test_tasks_of_different_sizes_are_counted_side_by_side(tasks):
    least = min(map(len, tasks))
    found = maj_at_k(make_ballots(*tasks), [1, least])
    assert found[least].values == pytest.approx([compute_by_brute_force(each, least) for each in tasks], abs=1e-12)


@settings(deadline=None)
@given(rollouts)
def test_a_vote_of_one_is_the_mean(rollouts):
    mean = sum(score for _, score in rollouts) / len(rollouts)
    assert maj_at_k(make_ballots(rollouts), [1])[1].values[0] == pytest.approx(mean)


@settings(deadline=None)
@given(rollouts)
def test_the_shares_of_a_win_add_up_to_one(rollouts):
    ballots = make_ballots(rollouts)
    for k in range(1, len(rollouts) + 1):
        shares = vote_shares(ballots.counts[None], ballots.silent, k)
        assert shares.sum() == pytest.approx(1.0)


def test_votes_count_answers_and_not_pairs_of_answer_and_score():
    # Three said 7 and were scored 1, 0, 1 by a noisy verifier; two said 8, which is right twice.
    # Split by score, 8 would win; by answers 7 does, worth its mean of 2/3.
    rollouts = [(7, 1.0), (7, 0.0), (7, 1.0), (8, 1.0), (8, 1.0)]
    assert maj_at_k(make_ballots(rollouts), [5])[5].values[0] == pytest.approx(2 / 3)


def test_ties_share():
    assert maj_at_k(make_ballots([(1, 1.0), (2, 0.0), (3, 0.5)]), [3])[3].values[0] == pytest.approx(0.5)


def test_who_has_no_answer_does_not_vote():
    # Two silent ones are more than the single answer, and still do not outvote it.
    assert maj_at_k(make_ballots([(NO_ANSWER, 0.0), (NO_ANSWER, 0.0), (5, 1.0)]), [3])[3].values[0] == 1.0


def test_where_nobody_votes_it_is_worth_what_the_silent_scored():
    assert maj_at_k(make_ballots([(NO_ANSWER, 0.25), (NO_ANSWER, 0.75)]), [2])[2].values[0] == 0.5


def test_large_counts_are_exact_and_finite():
    found = maj_at_k(make_ballots([(1, 1.0)] * 100 + [(2, 0.0)] * 100), [1, 2, 199, 200])
    assert [found[k].values[0] for k in (1, 2, 199, 200)] == pytest.approx([0.5] * 4)
    assert all(majority.error is None for majority in found.values())


def test_what_is_too_costly_to_count_is_drawn_with_its_error_and_the_seed_decides(monkeypatch):
    rng = np.random.default_rng(5)
    tasks = [[(int(a), float(a == 0)) for a in rng.integers(-1, 4, 12)] for _ in range(20)]
    exact = maj_at_k(make_ballots(*tasks), [4, 9])
    monkeypatch.setattr(majority_vote, "EXACT_STEPS", 0)
    drawn, again, other = (maj_at_k(make_ballots(*tasks), [4, 9], seed) for seed in (1, 1, 2))
    for k in (4, 9):
        error = drawn[k].error
        assert 0 < error < 0.01
        assert abs(drawn[k].values.mean() - exact[k].values.mean()) < 5 * error
        assert drawn[k].values.tolist() == again[k].values.tolist() != other[k].values.tolist()


def test_thousands_of_rollouts_a_task_are_drawn():
    task = [(1, 1.0)] * 900 + [(2, 0.0)] * 850
    found = maj_at_k(make_ballots(task), [101])[101]
    assert found.error is None  # a small k is counted
    drawn = maj_at_k(make_ballots(task), [901])[901]
    assert 0 < drawn.error < 0.02
    won = sum(comb(900, i) * comb(850, 901 - i) for i in range(451, 901)) / comb(1750, 901)
    assert drawn.values[0] == pytest.approx(won, abs=5 * drawn.error)


def test_a_vote_of_one_and_of_all_need_no_drawing(monkeypatch):
    monkeypatch.setattr(majority_vote, "EXACT_STEPS", 0)
    tasks = [
        [(1, 1.0)] * 900 + [(2, 0.0)] * 600,
        [(NO_ANSWER, 0.5)] * 1500,
        [(1, 1.0), (2, 0.0), (NO_ANSWER, 0.0)] * 500,
    ]
    found = maj_at_k(make_ballots(*tasks), [1, 1500])
    assert found[1].values.tolist() == pytest.approx([0.6, 0.5, 1 / 3])
    assert found[1500].values.tolist() == [1.0, 0.5, 0.5]
    assert [found[k].error for k in (1, 1500)] == [None, None]


def test_what_is_drawn_for_one_k_does_not_depend_on_the_others():
    rng = np.random.default_rng(3)
    ballots = make_ballots([(int(a), float(a % 2)) for a in rng.integers(0, 1500, 3000)])
    alone = {k: maj_at_k(ballots, [k])[k] for k in (4, 1500)}
    together = maj_at_k(ballots, [1, 4, 1500, 3000])
    assert [together[k].error is None for k in (1, 4, 1500, 3000)] == [True, True, False, True]
    for k, each in alone.items():
        assert (each.values.tolist(), each.error) == (together[k].values.tolist(), together[k].error)


def test_one_task_of_thousands_makes_no_other_task_drawn():
    rng = np.random.default_rng(3)
    small = [[(int(a), float(a == 0)) for a in rng.integers(-1, 3, 1600)] for _ in range(3)]
    small = [[*each[:6]] for each in small] + [[(1, 1.0), (2, 0.0)] * 2 + [(3, 0.0)]] * 30
    large = [(int(a), float(a % 2)) for a in rng.integers(0, 1500, 3000)]
    alone, beside = maj_at_k(make_ballots(*small), [4]), maj_at_k(make_ballots(*small, large), [4, 1500])
    assert beside[4].values[:33].tolist() == alone[4].values.tolist()
    assert not beside[4].drawn.any()
    assert beside[1500].drawn.tolist() == [False] * 33 + [True]
    assert beside[1500].error > 0


def test_many_rollouts_and_a_small_k_are_counted():
    # With two answers of a million each, a vote of three is a vote of three coins.
    found = maj_at_k(Ballots(*map(np.array, ([10**6] * 2, [1.0, 0.5], [2], [0], [0.0]))), [3])[3]
    assert found.values[0] == pytest.approx(0.75)
    assert not found.drawn.any()


def test_cheap_patterns_are_counted_and_only_the_dear_ones_drawn(monkeypatch):
    tasks = [[(1, 1.0), (2, 0.0), (2, 0.0)], [(at, float(at == 1)) for at in range(12)], [(1, 0.0), (1, 1.0), (1, 0.0)]]
    counted = maj_at_k(make_ballots(*tasks), [2])[2]
    monkeypatch.setattr(majority_vote, "EXACT_STEPS", 100)
    some = maj_at_k(make_ballots(*tasks), [2])[2]
    assert some.drawn.tolist() == [False, True, False]
    assert some.values[[0, 2]].tolist() == counted.values[[0, 2]].tolist()
    assert some.values[1] == pytest.approx(counted.values[1], abs=6 * some.variances[1] ** 0.5)


def test_tables_are_as_wide_as_their_own_tasks_and_not_as_the_widest():
    counts, answers = np.ones(20_000 + 3_000, np.int64), np.array([1] * 20_000 + [3_000])
    silent = np.zeros(20_001, np.int64)
    tracemalloc.start()
    found = maj_at_k(Ballots(counts, np.ones(len(counts)), answers, silent, silent * 0.0), [1, 2])[1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.values.tolist() == pytest.approx([1.0] * 20_001)
    assert peak < 60e6  # one table for all would take 20,000 x 3,000 x 8 bytes


def test_no_tasks_have_no_votes():
    assert maj_at_k(Ballots(*(np.zeros(0, np.int64) for _ in range(5))), [1])[1].values.tolist() == []


@pytest.mark.parametrize(("n", "fits"), [(900, True), (1030, False), (1100, False)])
def test_more_choices_than_a_float_holds_are_not_counted_exactly(n: int, fits: bool) -> None:
    counts, silent = np.array([[n // 2, n - n // 2]]), np.array([0])
    assert np.isfinite(majority_vote.estimate_steps(counts, silent, n // 2))[0] == fits
    assert (comb(n, n // 2) < 1e300) == fits


@pytest.mark.parametrize(("cells", "fits"), [(24, True), (23, False)])
def test_a_pattern_that_needs_too_many_numbers_at_once_is_not_counted(
    cells: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(majority_vote, "MAX_PATTERN_CELLS", cells)  # 4 answers x 2 nodes x k = 3
    steps = majority_vote.estimate_steps(np.array([[1, 1, 1, 1]]), np.array([0]), 3)
    assert np.isfinite(steps).tolist() == [fits]


def test_products_of_polynomials_are_cut_at_a_power() -> None:
    left, right = np.array([[[1.0, 2.0, 3.0]]]), np.array([[[4.0, 5.0]]])
    whole = [4.0, 13.0, 22.0, 15.0]
    for max_power in range(6):
        for pair in ((left, right), (right, left)):
            found = majority_vote.multiply_polynomials(*pair, max_power)[0, 0].tolist()
            assert found == whole[: max_power + 1]


def test_nodes_of_gauss_integrate_polynomials_exactly() -> None:
    for count in (1, 2, 5):
        nodes, weights = majority_vote.gauss_nodes(count)
        for power in range(2 * count):
            assert (weights * nodes**power).sum() == pytest.approx(1 / (power + 1))


def test_the_variance_of_what_is_drawn_is_that_of_its_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.array([0.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(majority_vote, "EXACT_STEPS", 0)
    monkeypatch.setattr(majority_vote, "MOST_DRAWS", 4)
    monkeypatch.setattr(majority_vote, "FEWEST_DRAWS", 4)
    monkeypatch.setattr(majority_vote, "_draw_values", lambda *_: drawn)
    found = maj_at_k(make_ballots([(1, 1.0), (2, 0.0), (2, 0.0)], [(1, 1.0), (1, 1.0)]), [2])[2]
    assert (found.values[0], found.variances[0]) == (0.75, pytest.approx(0.25 / 4))
    assert found.drawn.tolist() == [True, False]
    assert found.error == pytest.approx((0.25 / 4) ** 0.5 / 2)
    assert found.where(np.array([False, True])).error is None


@pytest.mark.parametrize(("cells", "draws"), [(1, 4096), (2500, 4000), (10_000, 1000), (10**6, 32)])
def test_fewer_draws_are_made_where_there_are_more_answers(
    monkeypatch: pytest.MonkeyPatch, cells: int, draws: int
) -> None:
    made = []

    def draw(ballots: Ballots, task: int, k: int, count: int, rng: object) -> np.ndarray:
        made.append(count)
        return np.zeros(2)

    monkeypatch.setattr(majority_vote, "EXACT_STEPS", 0)
    monkeypatch.setattr(majority_vote, "_draw_values", draw)
    counts = np.ones(cells - 1 or 1, np.int64)
    ballots = Ballots(counts, counts * 1.0, np.array([len(counts)]), np.array([5]), np.array([0.0]))
    maj_at_k(ballots, [2])
    assert made == [draws]


def test_votes_are_drawn_in_portions_and_are_worth_what_they_are() -> None:
    votes = np.array([[2, 1], [1, 1], [0, 0], [0, 3]])
    found = majority_vote._value_votes(votes, np.array([1.0, 0.5]), 0.25)
    assert found.tolist() == [1.0, 0.75, 0.25, 0.5]


@pytest.mark.parametrize("at_once", [1e6, 9, 1])
def test_as_many_votes_are_drawn_as_asked_however_few_at_once(at_once: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(majority_vote, "DRAWN_AT_ONCE", at_once)
    ballots = make_ballots([(1, 1.0), (2, 0.0), (2, 0.0)])
    drawn = majority_vote._draw_values(ballots, 0, 2, 10, np.random.default_rng(1))
    assert len(drawn) == 10
    assert set(drawn.tolist()) <= {0.0, 0.5}  # the second answer wins, or both have a vote


def test_the_cheapest_patterns_are_counted_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = np.array([5.0, 1.0, 5.0, 20.0])
    for budget, limit in ((0, 0.0), (1, 1.0), (10, 1.0), (11, 5.0), (30, 5.0), (31, 20.0), (99, 20.0)):
        monkeypatch.setattr(majority_vote, "EXACT_STEPS", budget)
        assert majority_vote._find_cost_limit(costs) == limit


def test_rows_that_are_equal_are_found() -> None:
    rows = np.array([[1, 2], [3, 4], [1, 2], [0, 0], [3, 4]])
    distinct, which = majority_vote.find_distinct_rows(rows)
    assert distinct.tolist() == [[1, 2], [3, 4], [0, 0]]
    assert which.tolist() == [0, 1, 0, 2, 1]


def test_portions_of_tasks_give_the_same_shares() -> None:
    rng = np.random.default_rng(1)
    counts = np.sort(rng.integers(0, 4, (7, 3)), axis=1)[:, ::-1]
    silent = rng.integers(4, 6, 7)
    whole = vote_shares(counts, silent, 3)
    rows = np.concatenate([vote_shares(counts[at : at + 1], silent[at : at + 1], 3) for at in range(7)])
    assert whole == pytest.approx(rows)
    assert vote_shares(counts[:0], silent[:0], 3).shape == (0, 4)


@pytest.mark.parametrize("top", [5, 40, 600])
def test_the_choices_that_a_float_holds_end_where_they_exceed_it(top: int) -> None:
    def count(n: int) -> int:
        return comb(n, min(top, n // 2))

    fits = [n for n in range(2, 1200) if majority_vote._fits_float(n, top)]
    assert fits == [n for n in range(2, 1200) if count(n) < 10**300]


@pytest.mark.parametrize(
    ("answers", "k", "steps"),
    [
        ([1, 1, 2], 2, 40),  # 2 x k x (one node for each of two numbers of votes) x (3 + 2 counts)
        ([1, 1, 1, 2], 2, 40),  # no more than k votes of an answer matter
        ([1, 1, 1, 2], 3, 108),
        ([1, 1, 2, 3, 4], 2, 72),  # for each of two numbers of votes one node: no four can tie with two votes each
        ([1, 2, 3, 4, 5], 3, 156),  # three tied answers need two nodes; the row has eight places: 5 x 2 + 3 counts
    ],
)
def test_what_costs_as_many_steps_as_the_budget_is_counted(
    answers: list[int], k: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for budget in (steps, steps - 1):
        monkeypatch.setattr(majority_vote, "EXACT_STEPS", budget)
        drawn.append(maj_at_k(make_ballots([(answer, 1.0) for answer in answers]), [k])[k].drawn.tolist())
    assert drawn == [[False], [True]]


def test_who_names_no_seed_gets_the_draws_of_seed_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(majority_vote, "EXACT_STEPS", 0)
    rows = [(0, answer, float(answer)) for answer in (0, 0, 1, 1, 2)]
    row, answer, score = zip(*rows, strict=True)
    stats = TaskStats(make_columns(row, score, answer))
    values = [each[2].values.tolist() for each in (stats.maj_at([2]), stats.maj_at([2], 0), stats.maj_at([2], 1))]
    assert values[0] == values[1] != values[2]
    assert maj_at_k(stats.ballots, [2])[2].values.tolist() == values[1]
