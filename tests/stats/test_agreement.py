"""How far two raters agree."""

import random

import pytest

from rollbook.stats import RatedItem, compare_raters


def test_raters_that_score_by_chance_have_no_kappa_whatever_the_scales_are():
    draw = random.Random(5)
    scales = [draw.choice([1, 3, 10]) for _ in range(6000)]
    items = [RatedItem(draw.randint(0, scale), draw.randint(0, scale), scale) for scale in scales]
    assert compare_raters(items, [(0.0, 1.0)], 0.3).kappa == pytest.approx(0.0, abs=0.04)


def test_equal_scores_of_several_scales_have_a_kappa_of_one():
    items = [RatedItem(score, score, scale) for scale in (1, 4) for score in range(scale + 1)]
    assert compare_raters(items, [(0.0, 0.0), (1.0, 1.0)], 1.0).kappa == 1.0


def test_kappa_is_undefined_where_all_scores_are_equal():
    assert compare_raters([RatedItem(1, 1), RatedItem(1, 1)], [(1.0, 1.0)], 1.0).kappa is None
