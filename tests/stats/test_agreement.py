"""How far two raters agree: shares, kappa and correlations."""

from __future__ import annotations

import random

import pytest

from rollbook.stats import RatedItem, RaterAgreement, compare_raters

ITEMS = [RatedItem(1, 1), RatedItem(0, 0), RatedItem(1, 0), RatedItem(0, 0)]
SUBJECTS = [(0.0, 0.0), (0.5, 1.0), (1.0, 2.0)]


def test_scores_that_are_all_equal_agree_fully() -> None:
    assert compare_raters([RatedItem(1, 1), RatedItem(0, 0)], SUBJECTS, 1.0) == RaterAgreement(3, 2, 1.0, 1.0, 1.0, 1.0)


def test_kappa_of_two_scores_is_cohens() -> None:
    # equal: 3 of 4; by chance 2/4 * 3/4 + 2/4 * 1/4 = 1/2; kappa = (3/4 - 1/2) / (1 - 1/2)
    assert compare_raters(ITEMS, SUBJECTS, 0.75).kappa == pytest.approx(0.5)


def test_kappa_of_opposite_scores_is_negative() -> None:
    assert compare_raters([RatedItem(0, 1), RatedItem(1, 0)], SUBJECTS, 0.0).kappa == pytest.approx(-1.0)


def test_kappa_is_weighted_by_squared_distance() -> None:
    # observed (0 + 1 + 4) / 3; expected over all nine pairs of (1, 2, 3) and (1, 3, 5): 39 / 9
    items = [RatedItem(1, 1), RatedItem(2, 3), RatedItem(3, 5)]
    assert compare_raters(items, SUBJECTS, 1 / 3).kappa == pytest.approx(1 - (5 / 3) / (39 / 9))


def test_equal_values_have_the_mean_of_their_ranks() -> None:
    # ranks 1.5, 1.5, 3, 4 and 1, 2, 3, 4
    found = compare_raters(ITEMS, [(0.0, 0.0), (0.0, 1.0), (0.5, 8.0), (9.0, 9.0)], 0.75)
    assert found.spearman == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert found.pearson != found.spearman


def test_order_alone_decides_the_rank_correlation() -> None:
    found = compare_raters(ITEMS, [(0.0, 100.0), (0.1, 5.0), (0.9, -6.0)], 0.75)
    assert found.spearman == -1.0
    assert found.pearson is not None
    assert -1.0 < found.pearson < 0.0


@pytest.mark.parametrize(
    "subjects", [[(0.5, 0.5)], [(0.5, 0.0), (0.5, 1.0)], [(0.0, 0.5), (1.0, 0.5)]], ids=["one", "first", "second"]
)
def test_what_is_undefined_is_none_and_shown_as_a_dash(subjects: list[tuple[float, float]]) -> None:
    found = compare_raters([RatedItem(1, 1), RatedItem(1, 1)], subjects, 1.0)
    assert (found.kappa, found.pearson, found.spearman) == (None, None, None)
    assert found.describe() == (
        f"judge and people: 100% of 2 scores equal, kappa -, over {len(subjects)} answers correlation - (rank -)"
    )


def test_two_subjects_are_enough_for_a_correlation() -> None:
    found = compare_raters(ITEMS, [(0.0, 1.0), (1.0, 0.0)], 0.75)
    assert (found.pearson, found.spearman) == (-1.0, -1.0)
    assert "kappa 0.500, over 2 answers correlation -1.000 (rank -1.000)" in found.describe()


def test_raters_that_score_by_chance_have_no_kappa_whatever_the_scales_are() -> None:
    draw = random.Random(5)
    scales = [draw.choice([1, 3, 10]) for _ in range(6000)]
    items = [RatedItem(draw.randint(0, scale), draw.randint(0, scale), scale) for scale in scales]
    assert compare_raters(items, [(0.0, 1.0)], 0.3).kappa == pytest.approx(0.0, abs=0.04)


def test_equal_scores_of_several_scales_have_a_kappa_of_one() -> None:
    items = [RatedItem(score, score, scale) for scale in (1, 4) for score in range(scale + 1)]
    assert compare_raters(items, [(0.0, 0.0), (1.0, 1.0)], 1.0).kappa == 1.0


def test_correlations_have_twelve_digits() -> None:
    # More of them differ between libraries of linear algebra.
    found = compare_raters(ITEMS, [(0.0, 1.0), (0.3, 0.1), (1.0, 0.7)], 0.75)
    assert found.pearson is not None
    assert f"{found.pearson:.16f}".rstrip("0") == f"{found.pearson:.12f}"
