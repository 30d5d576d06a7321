from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.viewer.report_page import HEIGHT, WIDTH, ChartAxis, SvgChart, choose_ticks


def drawn(chart: SvgChart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg())


def test_a_chart_is_well_formed_and_stays_in_its_frame() -> None:
    chart = SvgChart("a <title> & more", ChartAxis("x < y", 1, 16, True, [1, 2, 4, 8, 16]), ChartAxis("share", 0, 1))
    chart.bar(1, 2, 0.5, "half & half")
    chart.dots([(4, 0.25, "<dot>")])
    chart.line([(1, 0.1), (16, 1.0)], "first", "pass")
    chart.band([(1, 0.0, 0.2), (16, 0.9, 1.0)])
    root = drawn(chart)
    for circle in root.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= WIDTH
        assert 0 <= float(circle.attrib["cy"]) <= HEIGHT
    titles = [title.text for title in root.iter("title")]
    assert titles == ["half & half", "<dot>", "pass@1 = 0.100", "pass@16 = 1.000"]
    assert root.attrib["aria-label"] == "a <title> & more"


def test_powers_of_two_lie_at_equal_distances_on_a_logarithmic_axis() -> None:
    axis = ChartAxis("k", 1, 16, True)
    assert [axis.share(k) for k in (1, 2, 4, 8, 16)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_a_range_without_extent_is_drawn_in_the_middle() -> None:
    assert ChartAxis("k", 1, 1, True).share(1) == 0.5
    assert choose_ticks(3.0, 3.0) == [3.0]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_round_numbers_lie_in_the_range_and_are_few(low: float, size: float) -> None:
    marks = choose_ticks(low, low + size)
    assert len(marks) <= 8
    assert all(low - size * 1e-6 <= mark <= low + size * (1 + 1e-6) for mark in marks)
    assert all(map(math.isfinite, marks))
