"""The leaderboard in a real browser: its numbers, its links, on a wide screen and on a phone."""

import json

import pytest

from support.sample_runs import showcase
from support.viewing import Served


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = showcase(tmp_path_factory.mktemp("models") / "runs", tasks=20, samples=4)
    listed = [{"name": name} for name in ("baseline", "tuned", "later")]
    (folder / "models.json").write_text(json.dumps({"schema": 2, "models": listed}))
    with Served(folder) as server:
        yield server


@pytest.mark.parametrize("width", [1280, 390])
def test_the_leaderboard_is_above_the_runs_and_fits(look, models, width):
    looked = look(models)
    looked.page.set_viewport_size({"width": width, "height": 844})
    page = looked.go()
    rows = page.locator("table[aria-label=Leaderboard] tbody tr")
    assert rows.count() == 3
    assert "not started" in rows.nth(2).inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert looked.complaints == []


def test_a_difference_leads_to_the_comparison_with_the_best(look, models):
    looked = look(models)
    page = looked.go()
    page.click("table[aria-label=Leaderboard] a[href*=compare]")
    looked.there()
    assert "compare" in page.url
    assert looked.complaints == []
