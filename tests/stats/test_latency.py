import numpy as np
import pytest

from rollbook.stats.latency import Histogram


def test_quantiles_are_within_six_percent():
    seconds = np.random.default_rng(1).lognormal(0.5, 1.0, 20_000)
    histogram = Histogram()
    for part in np.array_split(seconds, 7):
        histogram.add(part)
    for share in (0.5, 0.95):
        assert histogram.quantile(share) == pytest.approx(np.quantile(seconds, share), rel=0.06)


def test_merging_is_counting_together():
    one, two, both = Histogram(), Histogram(), Histogram()
    one.add(np.array([0.1, 0.2]))
    two.add(np.array([30.0]))
    both.add(np.array([0.1, 0.2, 30.0]))
    one.merge(two)
    assert one.counts.tolist() == both.counts.tolist()


def test_nothing_counted_has_no_quantile():
    assert Histogram().quantile(0.5) is None


def test_zero_and_a_year_fall_into_the_outer_steps():
    histogram = Histogram()
    histogram.add(np.array([0.0, 3e7]))
    assert histogram.counts[0] == 1
    assert histogram.counts[-1] == 1
