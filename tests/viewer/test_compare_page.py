import pytest

from rollbook.errors import UsageError
from rollbook.reports import compare_runs
from rollbook.viewer.run_cache import CachedRun
from rollbook.viewer.run_overview import find_differing_samples, make_compare_page
from support.sample_runs import fill, make


def test_the_page_says_what_compare_says(runs):
    a, b = (CachedRun(runs / name).take_snapshot() for name in ("baseline", "tuned"))
    page = make_compare_page(a, b, False, 0, 50)
    told = compare_runs(runs / "baseline", runs / "tuned").comparison
    assert (page["gained"], page["lost"], page["pairs"]) == (len(told.gained), len(told.lost), 12)
    assert page["comparison"]["metrics"]["pass@1"]["difference"] == told.metrics["pass@1"].difference
    flipped = [row["id"] for row in page["rows"] if row["flip"]]
    assert set(flipped) == {*told.gained, *told.lost}
    assert [row["id"] for row in page["rows"]][: len(flipped)] == flipped


def test_other_tasks_are_compared_only_on_purpose(runs, tmp_path):
    fill(make(tmp_path / "more", tasks=14, samples=4), seed=5)
    a, b = CachedRun(runs / "baseline").take_snapshot(), CachedRun(tmp_path / "more").take_snapshot()
    with pytest.raises(UsageError, match="--common"):
        make_compare_page(a, b, False, 0, 50)
    page = make_compare_page(a, b, True, 0, 5)
    assert (page["pairs"], len(page["rows"])) == (12, 5)
    assert "task sets differ" in page["notes"][0]


def test_a_pair_that_differs_is_opened_where_there_is_one(runs):
    a, b = (CachedRun(runs / name).take_snapshot() for name in ("baseline", "tuned"))
    for row in make_compare_page(a, b, False, 0, 50)["rows"]:
        left = row["a"]["strip"][row["a"]["samples"].index(row["open"][0])]
        right = row["b"]["strip"][row["b"]["samples"].index(row["open"][1])]
        every = {mark for side in "ab" for mark in row[side]["strip"] if isinstance(mark, float)}
        assert left != right or len(every) == 1
        if row["flip"]:
            assert (left < right) == (row["flip"] == "gained")


@pytest.mark.parametrize(
    ("worse", "better", "places"),
    [
        ([0.0, 1.0], [1.0], (0, 0)),
        ([1.0], [1.0, 0.0], (0, 1)),
        ([None], [1.0], (0, 0)),
        (["error", 1.0], [1.0], (1, 0)),
    ],
)
def test_unlike_rewards(worse, better, places):
    assert find_differing_samples(worse, better) == places
